"""The scenario that the options of `slackline plan pipeline` describe."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from slackline.errors import UsageError
from slackline.plan.pipeline import (
    PS_PER_MS,
    Scenario,
    StageMemory,
    delayed_links,
    parse_scenario,
)
from slackline.units import parse_bytes, parse_duration_ns

__all__ = ["Input", "Study", "study_of"]

_PS_PER_NS = 1000
_NUMBER = re.compile(r"\d+(\.\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """The values of the command's options; None for an option that was not given."""

    stages: int | None
    microbatches: int | None
    times: str | None
    link_delays: tuple[str, ...]
    memory: str | None
    activation: str | None
    freed_at_backward: str | None
    recompute: str | None
    file: Path | None


@dataclass(frozen=True, slots=True)
class Study:
    """The scenario that the options describe, and the delays of links between ranks."""

    healthy: Scenario
    """The scenario; its delays are those of a file, between stages."""
    delays_ps: Mapping[int, tuple[int, int]]
    """For each slow link, the delay from rank i to rank i + 1, and that of the way back."""

    def delayed(self, placement: Sequence[int]) -> Scenario:
        """Return the scenario of a schedule that has its stages on these ranks.

        Raises UsageError for a slow link that the ranks do not have.
        """
        return delayed_links(self.healthy, placement, self.delays_ps)


def study_of(given: Input) -> Study:
    """Return the scenario and the slow links that the file or the options describe.

    Raises UsageError, which names the wrong value.
    """
    if given.file is not None:
        return Study(_from_file(given, given.file), {})
    for name, value in (("--stages", given.stages), ("--microbatches", given.microbatches)):
        if value is None:
            raise UsageError(f"{name} is needed without --scenario")
    assert given.stages is not None
    assert given.microbatches is not None
    if given.stages < 1:
        raise UsageError(f"stages must be a positive integer, not {given.stages}")
    forward, backward, weight = _times(given.times, given.stages)
    again = _number(given.recompute or "0", "--recompute")
    if again > 1:
        raise UsageError(f"--recompute must be a share from 0 to 1, not {float(again):g}")
    backward = tuple(
        back + int(again * ahead) for ahead, back in zip(forward, backward, strict=True)
    )
    scenario = replace(
        Scenario.uniform(given.stages, given.microbatches),
        forward_ps=forward,
        backward_input_ps=backward,
        backward_weight_ps=weight,
        memory=_memory(given, given.stages),
    )
    delays_ps = {}
    for text in given.link_delays:
        link, there_ps, back_ps = _link_delay(text)
        delays_ps[link] = there_ps, back_ps
    return Study(scenario, delays_ps)


def _from_file(given: Input, path: Path) -> Scenario:
    for name in ("stages", "microbatches", "times", "link_delays", "memory", "activation"):
        if getattr(given, name):
            option = "--" + name.removesuffix("s" if name == "link_delays" else "")
            raise UsageError(f"{option.replace('_', '-')} is set by the file of --scenario")
    if given.recompute is not None:
        raise UsageError("--recompute is for --times, not for the file of --scenario")
    if given.freed_at_backward is not None:
        raise UsageError("--freed-at-backward is set by the file of --scenario")
    try:
        text = path.read_text()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text") from None
    return parse_scenario(text)


def _times(text: str | None, stages: int) -> list[tuple[int, ...]]:
    """Return the times of F, of B and of W, one for each stage."""
    parts = [] if text is None else text.split(",")
    if len(parts) != 3:
        raise UsageError(f"--times must be F,B,W like 10ms,10ms,10ms, not {text!r}")
    return [_each_stage(part, stages) for part in parts]


def _each_stage(text: str, stages: int) -> tuple[int, ...]:
    """Return one time for each stage: "8/9/10/9", or "10" for all."""
    times = tuple(_picoseconds(each.strip()) for each in text.split("/"))
    if len(times) not in (1, stages):
        raise UsageError(
            f"--times must have one time or one for each of {stages} stages, such as 8/9/10/9, "
            f"not {text.strip()!r}"
        )
    return times * (stages // len(times))


def _link_delay(text: str) -> tuple[int, int, int]:
    link, colon, delays = text.partition(":")
    forward, slash, backward = delays.partition("/")
    if not colon or not link.isdecimal():
        raise UsageError(f"--link-delay must be LINK:DELAY like 2:60ms, not {text!r}")
    there = _picoseconds(forward)
    return int(link), there, _picoseconds(backward) if slash else there


def _memory(given: Input, stages: int) -> tuple[StageMemory, ...]:
    freed = _number(given.freed_at_backward or "0", "--freed-at-backward")
    caps = [] if given.memory is None else [each.strip() for each in given.memory.split(",")]
    if caps and len(caps) not in (1, stages):
        raise UsageError(f"--memory must be one cap or one for each of {stages} stages, not {caps}")
    if len(caps) < stages:
        caps = caps * stages
    if not any(cap[-1:] == "B" for cap in caps):
        if given.activation is not None:
            raise UsageError("--activation needs a --memory in bytes, such as 8GiB")
        limits: list[Fraction | None] = [_number(cap, "--memory") for cap in caps]
        limits = limits or [None] * stages
        return tuple(StageMemory.of_microbatches(limit, freed) for limit in limits)
    if given.activation is None:
        raise UsageError("--memory in bytes needs --activation")
    size = parse_bytes(given.activation)
    if not 0 <= freed <= 1:
        raise UsageError(f"freed_at_backward must be between 0 and 1, not {float(freed):g}")
    return tuple(
        StageMemory(activation=size, freed_at_backward=int(freed * size), cap=parse_bytes(cap))
        for cap in caps
    )


def _number(text: str, option: str) -> Fraction:
    if _NUMBER.fullmatch(text) is None:
        raise UsageError(f"{option} must be a number, not {text!r}")
    return Fraction(text)


def _picoseconds(text: str) -> int:
    """Parse a duration into picoseconds; a number without a unit is in milliseconds."""
    if _NUMBER.fullmatch(text):
        return round(Fraction(text) * PS_PER_MS)
    return parse_duration_ns(text) * _PS_PER_NS
