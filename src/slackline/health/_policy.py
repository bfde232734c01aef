"""What to do with a rail: pure functions (now, facts, options) -> (action, reason).

The engine decides by itself in microseconds; these say the same in words, so that its numbers can
be checked against them, and are what a runtime without such an engine would go by.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from slackline.health._state import WayState
from slackline.health._verdict import Condition, judge

__all__ = ["Action", "Choice", "PolicyOptions", "RailFacts", "silent", "spare", "take_back"]


class Action(StrEnum):
    """What becomes of a rail."""

    USE = "use"
    SUSPECT = "suspect"
    """Send nothing over it; what it had goes over the others; ask it again and again."""
    SPARE = "spare"
    """Send over it only when the others are full."""
    DROP = "drop"
    """End it and dial it again."""
    WAIT = "wait"


class Choice(NamedTuple):
    """An action and why."""

    action: Action
    reason: str


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """When silence is more than slowness, and when an answer is more than luck."""

    silent_ns: int = 100_000_000
    """Silence below this is never suspicious."""
    silent_round_trips: int = 8
    """Nor is silence of so many usual round trips."""
    lost_ns: int = 1_000_000_000
    """A rail that was silent for this long is dialled again."""
    answers: int = 1
    """So many answers in a row take a rail back."""
    flap_window_ns: int = 60_000_000_000
    """Suspicions of this long ago are forgiven."""
    flap_penalty_ns: int = 1_000_000_000
    """What each earlier suspicion in the window adds to the wait, doubled each time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RailFacts:
    """One rail at one moment, as the link knows it. Times are of this host's clock."""

    name: str
    in_flight: bool = False
    """Whether anything that was sent is not confirmed."""
    quiet_since_ns: int = 0
    """The last confirmation, or when the first of what is in flight was sent."""
    round_trip_ns: int = 0
    """The usual one; 0 while unknown."""
    others: int = 0
    """Other rails of the link that are used and answer."""
    answers: int = 0
    """Answers in a row since the rail was suspected."""
    suspected_ns: tuple[int, ...] = ()
    """When it was suspected, the last one last."""


def silent(now_ns: int, facts: RailFacts, options: PolicyOptions) -> Choice:
    """Whether a rail that is used is silent, and what follows."""
    quiet_ns = now_ns - facts.quiet_since_ns
    if not facts.in_flight:
        return Choice(Action.USE, f"{facts.name} owes no answer")
    limit_ns = max(options.silent_ns, options.silent_round_trips * facts.round_trip_ns)
    said = f"{facts.name} has been silent for {_ms(quiet_ns)}"
    if quiet_ns <= limit_ns:
        return Choice(Action.USE, f"{said}, of {_ms(limit_ns)} that it may")
    if quiet_ns > max(options.lost_ns, 20 * facts.round_trip_ns):
        return Choice(Action.DROP, f"{said}: it is dialled again")
    if not facts.others:
        return Choice(Action.USE, f"{said}, and the link has no other rail")
    return Choice(Action.SUSPECT, f"{said}: its frames go over the other rails")


def spare(now_ns: int, own: WayState, others: Sequence[WayState]) -> Choice:
    """Whether a rail that is slow should carry less, given the link's other rails."""
    verdict = judge(now_ns, own, alone=False)
    if verdict.decision not in (Condition.SLOW, Condition.LOSING):
        return Choice(Action.USE, verdict.reason)
    well = [other for other in others if judge(now_ns, other).decision is Condition.WELL]
    if not well:
        return Choice(Action.USE, f"{verdict.reason}; no other rail is well")
    names = ", ".join(f"rail {other.rail}" for other in well)
    return Choice(Action.SPARE, f"{verdict.reason}; {names} of the link is well")


def take_back(now_ns: int, facts: RailFacts, options: PolicyOptions) -> Choice:
    """Whether a suspected rail is used again. Each suspicion within the window doubles the wait."""
    if facts.answers < options.answers:
        return Choice(
            Action.WAIT,
            f"{facts.name} has answered {facts.answers} of {options.answers} times in a row",
        )
    recent = [at for at in facts.suspected_ns if now_ns - at <= options.flap_window_ns]
    earlier = len(recent) - 1
    if earlier > 0:
        wait_ns = options.flap_penalty_ns << (earlier - 1)
        left_ns = recent[-1] + wait_ns - now_ns
        if left_ns > 0:
            return Choice(
                Action.WAIT,
                f"{facts.name} answers, and was suspected {len(recent)} times lately: it is "
                f"taken back in {_ms(left_ns)}",
            )
    return Choice(Action.USE, f"{facts.name} answers again: it is taken back")


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.0f} ms"
