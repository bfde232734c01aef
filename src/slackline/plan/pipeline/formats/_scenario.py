"""The JSON form of a pipeline scenario: times in milliseconds, caps in activations or bytes.

{
  "stages": 4, "microbatches": 12,
  "forward_ms": [10, 10, 10, 10],            one for each stage, or one number for all
  "backward_input_ms": [10, 10, 10, 10],
  "backward_weight_ms": [10, 10, 10, 10],
  "link_forward_delay_ms": [0, 0, 60],       one for each link; 0 where it is left out
  "link_backward_delay_ms": [0, 0, 60],
  "activation_cap": [8, 8, 8, 8],            no cap where it is left out
  "freed_at_backward": 0.5                   the share of an activation that B frees; 0
}

Caps in bytes: "memory_bytes" in place of "activation_cap", and "activation_bytes".
"""

import json
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TypeVar

from slackline.errors import UsageError
from slackline.plan.pipeline._scenario import PS_PER_MS, Scenario, StageMemory

__all__ = ["parse_scenario", "scenario_from"]

_TIMES = ("forward_ms", "backward_input_ms", "backward_weight_ms")
_DELAYS = ("link_forward_delay_ms", "link_backward_delay_ms")
_MEMORY = ("activation_cap", "freed_at_backward", "memory_bytes", "activation_bytes")
_KNOWN = ("stages", "microbatches", *_TIMES, *_DELAYS, *_MEMORY)

_Value = TypeVar("_Value")


def parse_scenario(text: str) -> Scenario:
    """Parse a scenario from JSON text; raise UsageError that names the field and its value."""
    try:
        found = json.loads(text, parse_float=Fraction)
    except json.JSONDecodeError as error:
        raise UsageError(f"the scenario is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"the scenario must be a JSON object, not {text.strip()[:40]!r}")
    return scenario_from(found)


def scenario_from(found: Mapping[str, object]) -> Scenario:
    """Build a scenario from decoded JSON; a float counts as the decimal that Python prints."""
    for key in found:
        if key not in _KNOWN:
            raise UsageError(f'a scenario has no "{key}"; it has {", ".join(_KNOWN)}')
    for key in ("stages", "microbatches", *_TIMES):
        if key not in found:
            raise UsageError(f'the scenario lacks "{key}"')
    stages = _whole(found["stages"], "stages")
    if stages < 1:
        raise UsageError(f"stages must be a positive integer, not {stages}")
    times = [_each(found, key, stages, "stages", _picoseconds) for key in _TIMES]
    healthy = (0,) * (stages - 1)
    delays = [
        _each(found, key, stages - 1, "links", _picoseconds) if key in found else healthy
        for key in _DELAYS
    ]
    return Scenario(
        microbatches=_whole(found["microbatches"], "microbatches"),
        forward_ps=times[0],
        backward_input_ps=times[1],
        backward_weight_ps=times[2],
        forward_delay_ps=delays[0],
        backward_delay_ps=delays[1],
        memory=_memory(found, stages),
    )


def _memory(found: Mapping[str, object], stages: int) -> tuple[StageMemory, ...]:
    freed: tuple[Fraction, ...] = (Fraction(0),) * stages
    if "freed_at_backward" in found:
        freed = _each(found, "freed_at_backward", stages, "stages", _number)
    in_bytes = "memory_bytes" in found
    if in_bytes != ("activation_bytes" in found) or (in_bytes and "activation_cap" in found):
        raise UsageError(
            'a cap on memory is given either by "activation_cap", or by "memory_bytes" and '
            '"activation_bytes" together'
        )
    if not in_bytes:
        caps: tuple[Fraction | None, ...] = (None,) * stages
        if found.get("activation_cap") is not None:
            caps = _each(found, "activation_cap", stages, "stages", _number)
        return tuple(
            StageMemory.of_microbatches(cap, share) for cap, share in zip(caps, freed, strict=True)
        )
    sizes = _each(found, "activation_bytes", stages, "stages", _whole)
    limits = _each(found, "memory_bytes", stages, "stages", _whole)
    for share in freed:
        if not 0 <= share <= 1:
            raise UsageError(f"freed_at_backward must be between 0 and 1, not {float(share):g}")
    return tuple(
        StageMemory(activation=size, freed_at_backward=int(share * size), cap=limit)
        for size, share, limit in zip(sizes, freed, limits, strict=True)
    )


def _each(
    found: Mapping[str, object],
    key: str,
    count: int,
    what: str,
    convert: Callable[[object, str], _Value],
) -> tuple[_Value, ...]:
    """Return one value for each stage or link; a single number stands for all of them."""
    value = found[key]
    if not isinstance(value, (list, tuple)):
        return (convert(value, key),) * count
    if len(value) != count:
        raise UsageError(
            f"{key} must have one value for each of the {count} {what}, not {len(value)}"
        )
    return tuple(convert(each, f"{key}[{place}]") for place, each in enumerate(value))


def _number(value: object, key: str) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, (int, float, Fraction)):
        raise UsageError(f"{key} must be a number, not {value!r}")
    try:
        return Fraction(str(value)) if isinstance(value, float) else Fraction(value)
    except ValueError:
        raise UsageError(f"{key} must be a finite number, not {value}") from None


def _picoseconds(value: object, key: str) -> int:
    number = _number(value, key)
    if number < 0:
        raise UsageError(f"{key} must be at least 0, not {float(number):g}")
    return round(number * PS_PER_MS)


def _whole(value: object, key: str) -> int:
    number = _number(value, key)
    if number.denominator != 1:
        raise UsageError(f"{key} must be an integer, not {float(number):g}")
    return int(number)
