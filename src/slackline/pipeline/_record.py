"""The record of a step on one rank: instructions, idle times, messages and activations held.

Times are nanoseconds since the step began on this rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from slackline.plan.pipeline import Instruction, Kind
from slackline.records import CoreTimes, PipelineStep
from slackline.units import show_number, show_time

__all__ = ["Came", "Sent", "Span", "StepRecord", "Wait", "overview", "telemetry_of"]


class Span(NamedTuple):
    """The time span in which a rank computed a pipeline instruction (F, B, W or BW)."""

    instruction: Instruction
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """The duration of the computation in nanoseconds."""
        return self.end_ns - self.start_ns


class Wait(NamedTuple):
    """A time span in which a rank had no instruction ready and was idle."""

    start_ns: int
    end_ns: int
    before: str
    """The instruction that was started at the end of the wait."""


class Came(NamedTuple):
    """The record of a pipeline message that arrived from another rank."""

    sender: Instruction
    """The instruction that computed the message."""
    arrived_ns: int
    delay_ns: int
    """The time from computation to arrival, by the clocks of both hosts, which may differ."""
    nbytes: int

    @property
    def link(self) -> int:
        """The link that the message came over; link n joins the stages n and n + 1."""
        return self.sender.stage - self.sender.kind.backward


class Sent(NamedTuple):
    """The record of a pipeline message that was sent to another rank."""

    sender: Instruction
    """The instruction that computed the message."""
    nbytes: int
    cost_ns: int
    """The time that the send took from the computing thread; spans and waits do not include it."""
    inline: bool
    """True if the computing thread sent the message, False if the engine did."""

    @property
    def link(self) -> int:
        """The link that the message went over; link n joins the stages n and n + 1."""
        return self.sender.stage - self.sender.kind.backward


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """The record of one pipeline step on one rank."""

    rank: int
    """The rank in the pipeline's process group."""
    step: int
    time_ns: int
    """The Unix time at which the step began."""
    wall_ns: int
    plan: str
    policy: str
    order: str
    spans: tuple[Span, ...]
    waits: tuple[Wait, ...]
    came: tuple[Came, ...]
    sends: tuple[Sent, ...]
    peak_held: tuple[tuple[int, float], ...]
    """The peak of activations held by each stage: (stage, activations)."""
    reductions_ns: tuple[tuple[int, int], ...] = ()
    """The start of the first reduction over replicas of each stage: (stage, time)."""
    change: str = ""
    """The reason why the plan is not the previous step's plan, or why a trial of plans begins or
    ends; empty otherwise."""
    core_times: CoreTimes | None = None
    """The times of the step for which the computing thread ran on a core, and waited for one;
    None where they are not known."""

    @property
    def computing_ns(self) -> int:
        """The total time in which the rank computed."""
        return sum(span.duration_ns for span in self.spans)

    @property
    def sending_ns(self) -> int:
        """The total time that sends took from the computing thread."""
        return sum(sent.cost_ns for sent in self.sends)

    @property
    def waiting_ns(self) -> int:
        """The total time in which the rank was idle."""
        return sum(wait.end_ns - wait.start_ns for wait in self.waits)

    def times_ns(self, stage: int) -> tuple[int, int, int]:
        """Return the median times of a stage's F, B and W in nanoseconds.

        A backward in one piece (BW) counts as B. A time is 0 if there was no such instruction.
        """
        found = []
        for kinds in ((Kind.F,), (Kind.B, Kind.BW), (Kind.W,)):
            each = [
                span.duration_ns
                for span in self.spans
                if span.instruction.stage == stage and span.instruction.kind in kinds
            ]
            found.append(round(median(each)) if each else 0)
        return found[0], found[1], found[2]

    def delay_ns(self, stage: int, *, backward: bool) -> int | None:
        """Return the median delay of a stage's incoming activations, or gradients with `backward`.

        The result is None if no such message came from another rank.
        """
        above = stage + 1 if backward else stage - 1
        each = [
            came.delay_ns
            for came in self.came
            if came.sender.stage == above and came.sender.kind.backward == backward
        ]
        return round(median(each)) if each else None

    def scalars(self) -> dict[str, float]:
        """Return the figures of the step by name, as loggers of training take them.

        Names that end in `_ms` have milliseconds and names that end in `_bytes` bytes;
        `waiting_share` is the part of the step in which the rank was idle, from 0 to 1.
        """
        return {
            "wall_ms": self.wall_ns / 1e6,
            "computing_ms": self.computing_ns / 1e6,
            "waiting_ms": self.waiting_ns / 1e6,
            "sending_ms": self.sending_ns / 1e6,
            "waiting_share": self.waiting_ns / self.wall_ns if self.wall_ns else 0.0,
            "sent_bytes": float(sum(sent.nbytes for sent in self.sends)),
            "received_bytes": float(sum(came.nbytes for came in self.came)),
        }

    def order_of(self) -> list[str]:
        """Return the instructions as text, such as "2F0", in the order of their computation."""
        return [str(span.instruction) for span in self.spans]

    def __str__(self) -> str:
        lines = [
            f"rank {self.rank}, step {self.step}: {show_time(self.wall_ns)}, computing "
            f"{show_time(self.computing_ns)}, waiting {show_time(self.waiting_ns)} "
            f"({self.plan}, policy {self.policy})"
        ]
        if self.change:
            lines.append(f"  changed: {self.change}")
        for stage, most in self.peak_held:
            forward, backward, weights = map(show_time, self.times_ns(stage))
            lines.append(
                f"  stage {stage}: F {forward}, B {backward}, W {weights}, "
                f"at most {show_number(most)} activations"
            )
            for towards, name in ((False, "activations"), (True, "gradients")):
                delay = self.delay_ns(stage, backward=towards)
                if delay is not None:
                    above = stage + 1 if towards else stage - 1
                    lines.append(f"    {name} from stage {above} under way for {show_time(delay)}")
        longest = sorted(self.waits, key=lambda wait: wait.start_ns - wait.end_ns)[:3]
        lines += [
            f"  waited {show_time(wait.end_ns - wait.start_ns)} for {wait.before}, "
            f"from {show_time(wait.start_ns)}"
            for wait in longest
        ]
        return "\n".join(lines)


def telemetry_of(record: StepRecord, rank: int) -> PipelineStep:
    """Return a step's record in the form of a telemetry entry of `rank`, the rank in the job."""
    times = record.core_times
    return PipelineStep(
        rank=rank,
        step=record.step,
        time_ns=record.time_ns,
        wall_ns=record.wall_ns,
        computing_ns=record.computing_ns,
        waiting_ns=record.waiting_ns,
        run_ns=None if times is None else times.run_ns,
        run_delay_ns=None if times is None else times.delay_ns,
        plan=record.plan,
        policy=record.policy,
        change=record.change,
        tokens=tuple(record.order_of()),
        start_ns=tuple(span.start_ns for span in record.spans),
        end_ns=tuple(span.end_ns for span in record.spans),
        senders=tuple(str(came.sender) for came in record.came),
        arrived_ns=tuple(came.arrived_ns for came in record.came),
        delays_ns=tuple(came.delay_ns for came in record.came),
    )


def overview(records: Sequence[StepRecord]) -> str:
    """Return a text with one line for each step's record."""
    lines = []
    for record in records:
        line = (
            f"step {record.step}: {show_time(record.wall_ns)}, computing "
            f"{show_time(record.computing_ns)}, "
            f"waiting {show_time(record.waiting_ns)}, {record.plan}"
        )
        lines.append(f"{line}; changed: {record.change}" if record.change else line)
    return "\n".join(lines)
