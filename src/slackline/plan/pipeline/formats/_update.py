"""The message by which ranks exchange a new pipeline plan and the times that it was made for.

    zlib( JSON of names and numbers, a newline, int64 values )

Each instruction of each rank takes three int64 values; the planned waits of all ranks follow.
"""

import json
import zlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from typing import Any, Self

from slackline.errors import UsageError
from slackline.plan.pipeline._instruction import Instruction, Kind
from slackline.plan.pipeline._plan import PipelinePlan
from slackline.plan.pipeline._replay import planned_waits_ps
from slackline.plan.pipeline._scenario import Scenario, StageMemory
from slackline.plan.pipeline.formats._blocks import read_block, write_block

__all__ = [
    "PlanUpdate",
    "decode_updates",
    "encode_updates",
    "scenario_from_numbers",
    "scenario_numbers",
]

_KINDS = tuple(Kind)
_CODES = {kind: code for code, kind in enumerate(_KINDS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanUpdate:
    """A pipeline plan that is to replace another plan."""

    plan: PipelinePlan
    scenario: Scenario
    """The times, delays and memory that the plan was made for."""
    reason: str
    """The reason for the new plan as a sentence, which logs and reports show unchanged."""
    waits_ps: tuple[tuple[int, ...], ...]
    """The planned idle time before each instruction of each rank, in picoseconds."""

    @classmethod
    def of(cls, plan: PipelinePlan, scenario: Scenario, reason: str) -> Self:
        """Return the update to `plan`, with the plan's idle times computed from `scenario`."""
        waits = planned_waits_ps(plan, scenario)
        return cls(plan=plan, scenario=scenario, reason=reason, waits_ps=waits)

    def encode(self) -> bytes:
        """Return the update as bytes."""
        plan = self.plan
        head = {
            "name": plan.name,
            "microbatches": plan.microbatches,
            "placement": plan.placement,
            "lengths": [len(program) for program in plan.programs],
            "scenario": scenario_numbers(self.scenario),
            "reason": self.reason,
        }
        numbers = array("q")
        for _, _, each in plan.cells():
            numbers.extend((each.stage, _CODES[each.kind], each.microbatch))
        for waits in self.waits_ps:
            numbers.extend(waits)
        return zlib.compress(json.dumps(head).encode() + b"\n" + numbers.tobytes(), 1)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the update that `encode` wrote; raise UsageError for other bytes."""
        try:
            text, _, rest = zlib.decompress(data).partition(b"\n")
            head = json.loads(text)
            numbers = array("q")
            numbers.frombytes(rest)
        except (ValueError, zlib.error) as error:
            raise UsageError(f"{len(data)} bytes are no plan of a pipeline: {error}") from None
        lengths = head["lengths"]
        if len(numbers) != 4 * sum(lengths):
            raise UsageError(
                f"a plan of {sum(lengths)} instructions has {len(numbers)} numbers, "
                f"not {4 * sum(lengths)}"
            )
        values = iter(numbers)
        programs = tuple(tuple(_instructions(values, length)) for length in lengths)
        waits = tuple(tuple(next(values) for _ in range(length)) for length in lengths)
        return cls(
            plan=PipelinePlan(
                name=head["name"],
                microbatches=head["microbatches"],
                placement=tuple(head["placement"]),
                programs=programs,
            ),
            scenario=scenario_from_numbers(head["scenario"]),
            reason=head["reason"],
            waits_ps=waits,
        )


def encode_updates(updates: Sequence[PlanUpdate]) -> bytes:
    """Return several updates as bytes: blocks, of which each holds one update."""
    stream = BytesIO()
    for each in updates:
        write_block(stream, each.encode())
    return stream.getvalue()


def decode_updates(data: bytes) -> list[PlanUpdate]:
    """Return the updates that `encode_updates` wrote; raise UsageError for other bytes."""
    stream, found = BytesIO(data), []
    while stream.tell() < len(data):
        block = read_block(stream)
        if block is None:
            raise UsageError(f"{len(data)} bytes end within a plan of a pipeline")
        found.append(PlanUpdate.decode(block))
    return found


def scenario_numbers(scenario: Scenario) -> dict[str, Any]:
    """Return the scenario as a JSON object of integers; times are picoseconds."""
    return asdict(scenario)


def scenario_from_numbers(numbers: dict[str, Any]) -> Scenario:
    """Return the scenario that `scenario_numbers` wrote."""
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in numbers.items()
    }
    values["memory"] = tuple(StageMemory(**each) for each in numbers["memory"])
    return Scenario(**values)


def _instructions(values: Iterator[int], count: int) -> Iterator[Instruction]:
    for _ in range(count):
        stage, code, microbatch = next(values), next(values), next(values)
        yield Instruction(stage, _KINDS[code], microbatch)
