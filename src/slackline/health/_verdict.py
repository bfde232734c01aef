"""From a direction's state to a word and a sentence: pure functions.

The sentence is shown as it is, by the log, the command and the page.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from slackline.health._state import Shift, WayState

__all__ = [
    "WHOLE_RAIL",
    "Condition",
    "Judgement",
    "Verdict",
    "judge",
    "latest",
    "recovered",
    "way_name",
]


WHOLE_RAIL = ("cut", "silent")
"""Findings that both directions of a rail have in common."""


class Condition(StrEnum):
    """What a link's direction is; `LATE` is a rank's, `BACK` the news that all is well again."""

    LEARNING = "learning"
    WELL = "well"
    SLOW = "slow"
    LOSING = "losing"
    SILENT = "silent"
    CUT = "cut"
    LATE = "late"
    BACK = "back"


class Judgement(NamedTuple):
    """A decision and why."""

    decision: Condition
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """One piece of news: a direction of a link, or a rank, is not what it was."""

    time_ns: int
    """When it was found."""
    since_ns: int
    """When it began."""
    condition: Condition
    """What it is now."""
    source: int
    """The rank that sends."""
    target: int
    """The rank that receives; for LATE the rank itself, as `source`."""
    rail: int
    """Which of the link's rails."""
    reason: str
    """The sentence."""
    over_ns: int = 0
    """By how much the latency exceeds its usual; 0 where it does not."""


def judge(now_ns: int, state: WayState, *, start_ns: int = 0, alone: bool = True) -> Judgement:
    """What a direction is at `now_ns`. The sentence counts seconds from `start_ns`.

    `alone`: the rail is the only one of its link, and need not be named.
    """
    if state.cut_since_ns is not None:
        name = way_name(state, alone=alone, between="-")
        return Judgement(
            Condition.CUT, f"{name} is cut since {_seconds(state.cut_since_ns - start_ns)}"
        )
    if state.silent_since_ns is not None:
        name = way_name(state, alone=alone, between="-")
        quiet = _seconds(state.silent_since_ns - start_ns)
        lasting_ns = now_ns - state.silent_since_ns
        lasting = f": no answer for {_duration(lasting_ns)}" if lasting_ns else ""
        return Judgement(Condition.SILENT, f"{name} is silent since {quiet}{lasting}")
    name = way_name(state, alone=alone)
    if not state.known and not (state.bandwidth or state.loss):
        return Judgement(Condition.LEARNING, f"{name} is being measured")
    parts = []
    if state.latency is not None:
        over = _duration(state.latency.now - state.latency.usual)
        parts.append(f"{over} over its usual {_duration(state.latency.usual)}")
    if state.bandwidth is not None:
        now, usual = _rates(state.bandwidth)
        parts.append(f"carries {now} of its usual {usual}")
    if state.loss is not None:
        parts.append(f"loses {_percent(state.loss.now)} of packets")
    if not parts:
        return Judgement(
            Condition.WELL, f"{name} is well: {_duration(state.usual_ns)} one way as usual"
        )
    since = f"since {_seconds(_since_ns(state) - start_ns)}"
    if state.latency is None and state.bandwidth is None:
        return Judgement(Condition.LOSING, f"{name} {parts[0]} {since}")
    cause = f"; {_where(state)}" if state.queueing is not None else ""
    return Judgement(Condition.SLOW, f"{name} is slow {since}: {', '.join(parts)}{cause}")


def recovered(now_ns: int, state: WayState, since_ns: int, *, start_ns: int, alone: bool) -> str:
    """The sentence for a direction that is well again, after trouble that began at `since_ns`."""
    usual = f"{_duration(state.usual_ns)} one way" if state.known else "its peer answers"
    lasting = _duration(now_ns - since_ns)
    return (
        f"{way_name(state, alone=alone)} is back at {_seconds(now_ns - start_ns)}: "
        f"{usual}, after {lasting}"
    )


def latest(state: WayState) -> tuple[str, ...]:
    """Which findings a direction has: news is a change of these."""
    named = {
        "cut": state.cut_since_ns is not None,
        "silent": state.silent_since_ns is not None,
        "latency": state.latency is not None,
        "bandwidth": state.bandwidth is not None,
        "loss": state.loss is not None,
    }
    return tuple(name for name, present in named.items() if present)


def way_name(state: WayState, *, alone: bool, between: str = ">") -> str:
    """The direction as sentences name it: "link 2>3"."""
    link = f"link {state.source}{between}{state.target}"
    return link if alone else f"{link} on rail {state.rail} ({state.name})"


def _since_ns(state: WayState) -> int:
    shifts = (state.latency, state.bandwidth, state.loss)
    return min(shift.since_ns for shift in shifts if shift is not None)


def _where(state: WayState) -> str:
    if state.queueing:
        return "queueing at the sender's NIC"
    return "nothing more than usual waits at the sender"


def _seconds(ns: int) -> str:
    return f"{ns / 1e9:.1f} s"


def _duration(ns: float) -> str:
    """Two digits or so: "0.2 ms", "31 ms", "1.5 s"."""
    for limit, unit, size in ((1e3, "ns", 1.0), (1e5, "us", 1e3), (1e9, "ms", 1e6)):
        if ns < limit:
            return f"{_short(ns / size)} {unit}"
    return f"{_short(ns / 1e9)} s"


def _rates(shift: Shift) -> tuple[str, str]:
    """Both in the unit of the usual: ("210 Mbit/s", "940 Mbit/s")."""
    usual = shift.usual * 8
    unit, size = next(
        (named for named in (("Gbit/s", 1e9), ("Mbit/s", 1e6)) if usual >= named[1]),
        ("kbit/s", 1e3),
    )
    return f"{_short(shift.now * 8 / size)} {unit}", f"{_short(usual / size)} {unit}"


def _percent(share: float) -> str:
    return f"{_short(share * 100)} %"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"
