"""Pure functions that turn the state of a rail's direction into a condition and a sentence.

The log, the command line and the report page show the sentence unchanged.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from slackline.detect._state import DirectionState
from slackline.units import show_moment, show_percent, show_rate, show_time

__all__ = [
    "WHOLE_RAIL",
    "Condition",
    "Judgement",
    "Verdict",
    "direction_name",
    "judge",
    "latest",
    "recovered",
]


WHOLE_RAIL = ("cut", "silent")
"""The findings that both directions of a rail share."""


class Condition(StrEnum):
    """The condition of one direction of a link.

    `LATE` is the condition of a rank. `BACK` reports that an earlier problem is over.
    """

    LEARNING = "learning"
    WELL = "well"
    SLOW = "slow"
    LOSING = "losing"
    SILENT = "silent"
    CUT = "cut"
    LATE = "late"
    BACK = "back"

    @property
    def broken(self) -> bool:
        """Whether nothing arrives over the rail."""
        return self in (Condition.SILENT, Condition.CUT)


class Judgement(NamedTuple):
    """A condition together with the sentence that explains it."""

    decision: Condition
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A report that the condition of a link's direction, or of a rank, has changed."""

    time_ns: int
    """The time at which the change was found."""
    since_ns: int
    """The time at which the change began."""
    condition: Condition
    """The new condition."""
    source: int
    """The rank that sends."""
    target: int
    """The rank that receives; for LATE the late rank itself, like `source`."""
    rail: int
    """The index of the rail within its link."""
    reason: str
    """The English sentence that explains the condition."""
    over_ns: int = 0
    """The excess of the latency over its baseline; 0 without an excess."""


def judge(
    now_ns: int, state: DirectionState, *, start_ns: int = 0, alone: bool = True
) -> Judgement:
    """Return the condition of a link's direction at `now_ns`, with a sentence that explains it.

    The sentence counts seconds from `start_ns`. `alone` says that the rail is the only one of its
    link, so that the sentence does not name the rail.
    """
    if state.cut_since_ns is not None:
        name = direction_name(state, alone=alone, between="-")
        why = f": {state.why}" if state.why else ""
        since = show_moment(state.cut_since_ns - start_ns)
        return Judgement(Condition.CUT, f"{name} is cut since {since}{why}")
    if state.silent_since_ns is not None:
        name = direction_name(state, alone=alone, between="-")
        quiet = show_moment(state.silent_since_ns - start_ns)
        lasting_ns = now_ns - state.silent_since_ns
        lasting = f": no answer for {show_time(lasting_ns)}" if lasting_ns else ""
        if state.why:
            lasting = f": {state.why}"
        return Judgement(Condition.SILENT, f"{name} is silent since {quiet}{lasting}")
    name = direction_name(state, alone=alone)
    if not state.known and not (state.bandwidth or state.loss):
        return Judgement(Condition.LEARNING, f"{name} is being measured")
    parts = []
    if state.latency is not None:
        over = show_time(state.latency.now - state.latency.baseline)
        parts.append(f"{over} over its usual {show_time(state.latency.baseline)}")
    if state.bandwidth is not None:
        now = show_rate(8 * state.bandwidth.now)
        baseline = show_rate(8 * state.bandwidth.baseline)
        parts.append(f"carries {now} of its usual {baseline}")
    if state.loss is not None:
        parts.append(f"loses {show_percent(state.loss.now)} of packets")
    if not parts:
        return Judgement(
            Condition.WELL, f"{name} is well: {show_time(state.baseline_ns)} one way as usual"
        )
    since = f"since {show_moment(_since_ns(state) - start_ns)}"
    if state.latency is None and state.bandwidth is None:
        return Judgement(Condition.LOSING, f"{name} {parts[0]} {since}")
    cause = f"; {_where(state)}" if state.queueing is not None else ""
    return Judgement(Condition.SLOW, f"{name} is slow {since}: {', '.join(parts)}{cause}")


def recovered(
    now_ns: int, state: DirectionState, since_ns: int, *, start_ns: int, alone: bool
) -> str:
    """Return the sentence that reports the end of a direction's problem, begun at `since_ns`."""
    baseline = f"{show_time(state.baseline_ns)} one way" if state.known else "its peer answers"
    lasting = show_time(now_ns - since_ns)
    return (
        f"{direction_name(state, alone=alone)} is back at {show_moment(now_ns - start_ns)}: "
        f"{baseline}, after {lasting}"
    )


def latest(state: DirectionState) -> tuple[str, ...]:
    """Return the names of a direction's findings, such as "latency"; new names make a verdict."""
    named = {
        "cut": state.cut_since_ns is not None,
        "silent": state.silent_since_ns is not None,
        "latency": state.latency is not None,
        "bandwidth": state.bandwidth is not None,
        "loss": state.loss is not None,
    }
    return tuple(name for name, present in named.items() if present)


def direction_name(state: DirectionState, *, alone: bool, between: str = ">") -> str:
    """Return the name of a link's direction for sentences, for example "link 2>3".

    With `between` as "-", which stands for both directions, the lower rank comes first: whichever
    end notices first, the name is the same.
    """
    ranks = state.source, state.target
    first, second = sorted(ranks) if between == "-" else ranks
    link = f"link {first}{between}{second}"
    return link if alone else f"{link} on rail {state.rail} ({state.name})"


def _since_ns(state: DirectionState) -> int:
    shifts = (state.latency, state.bandwidth, state.loss)
    return min(shift.since_ns for shift in shifts if shift is not None)


def _where(state: DirectionState) -> str:
    if state.queueing:
        return "queueing at the sender's NIC"
    return "nothing more than usual waits at the sender"
