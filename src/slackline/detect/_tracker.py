"""The health tracker of one rank's rails: samples in, verdicts (reports of changes) out.

The tracker has no clock and no thread: the caller passes the time with each set of samples, and
the same samples give the same verdicts.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from slackline.detect._options import HealthOptions
from slackline.detect._rail import RailHealth
from slackline.detect._samples import RailSample
from slackline.detect._state import DirectionState
from slackline.detect._stragglers import Side, find_stragglers
from slackline.detect._verdict import (
    WHOLE_RAIL,
    Condition,
    Judgement,
    Verdict,
    judge,
    latest,
    recovered,
)

__all__ = ["Tracker"]


@dataclass(slots=True)
class _Known:
    """The last findings that were reported about one direction of a rail."""

    findings: tuple[str, ...]
    since_ns: int


class Tracker:
    """The health tracker of every rail of one rank. Only one thread may use the object."""

    def __init__(self, start_ns: int, options: HealthOptions | None = None) -> None:
        """Create a tracker without rails; verdicts count seconds from `start_ns`."""
        self._start_ns = start_ns
        self._options = options or HealthOptions()
        self._rails: dict[tuple[int, int], RailHealth] = {}
        self._said: dict[tuple[int, int, int], _Known] = {}
        self._stragglers: dict[Side, int] = {}

    def take(
        self,
        now_ns: int,
        samples: Iterable[RailSample],
        ended: Collection[int] = (),
        reasons: Mapping[tuple[int, int], str] = MappingProxyType({}),
    ) -> list[Verdict]:
        """Add one sample of every rail of the engine; return new verdicts (reports of changes).

        `ended` names the peers that have left or died; their links get no verdicts. If a rail to
        any other peer has no sample in two consecutive calls, the rail is reported as cut.
        `reasons` has the reason that the engine gives for each rail, by peer and index, that it has
        lost or does not use: such a rail is reported at the first call without a sample.
        """
        for key in [key for key in self._rails if key[0] in ended]:
            del self._rails[key]
        for direction in [
            direction for direction in self._said if {direction[0], direction[1]} & set(ended)
        ]:
            del self._said[direction]
        seen = set()
        for sample in samples:
            key = sample.peer, sample.rail
            seen.add(key)
            rail = self._rails.get(key)
            if rail is None:
                rail = self._rails[key] = RailHealth(self._options, sample)
            rail.take(now_ns, sample, reasons.get(key, ""))
        for key, rail in self._rails.items():
            if key not in seen:
                rail.gone(now_ns, reasons.get(key, ""))
        states = self.states()
        verdicts = [
            verdict for state in states if (verdict := self._new_verdict(now_ns, state)) is not None
        ]
        return verdicts + self._straggler_verdicts(now_ns, states)

    def states(self) -> list[DirectionState]:
        """Return the state of both directions of every rail, in the order of peers and rails."""
        return [state for key in sorted(self._rails) for state in self._rails[key].states()]

    def judgements(self, now_ns: int) -> list[Judgement]:
        """Return the present condition and sentence for each state that `states()` returns."""
        rails = self._rails_of_links()
        return [self._judge(now_ns, state, rails) for state in self.states()]

    def _judge(self, now_ns: int, state: DirectionState, rails: Counter[int]) -> Judgement:
        return judge(now_ns, state, start_ns=self._start_ns, alone=_alone(state, rails))

    def _rails_of_links(self) -> Counter[int]:
        """Return the number of rails of each link, by its peer."""
        return Counter(peer for peer, _ in self._rails)

    def _new_verdict(self, now_ns: int, state: DirectionState) -> Verdict | None:
        """Return a verdict if a direction's findings have changed, else None."""
        key = state.source, state.target, state.rail
        findings = latest(state)
        # The other direction has already reported the findings about the whole rail.
        if (state.target, state.rail) not in self._rails:
            findings = tuple(name for name in findings if name not in WHOLE_RAIL)
        before = self._said.get(key)
        if findings == (before.findings if before is not None else ()):
            return None
        if not findings:
            assert before is not None
            del self._said[key]
            reason = recovered(
                now_ns,
                state,
                before.since_ns,
                start_ns=self._start_ns,
                alone=_alone(state, self._rails_of_links()),
            )
            condition, since_ns = Condition.BACK, now_ns
        else:
            condition, reason = self._judge(now_ns, state, self._rails_of_links())
            since_ns = _began_ns(state)
            self._said[key] = _Known(findings, before.since_ns if before else since_ns)
        return Verdict(
            time_ns=now_ns,
            since_ns=since_ns,
            condition=condition,
            source=state.source,
            target=state.target,
            rail=state.rail,
            reason=reason,
            over_ns=round(state.latency.now - state.latency.baseline) if state.latency else 0,
        )

    def _straggler_verdicts(self, now_ns: int, states: list[DirectionState]) -> list[Verdict]:
        """Return a verdict if this rank's links show that it became late or stopped being late."""
        over = {
            (state.source, state.target): round(state.latency.now - state.latency.baseline)
            for state in states
            if state.latency is not None
        }
        ranks = len({peer for peer, _ in self._rails}) + 1
        stragglers = {each.side: each for each in find_stragglers(ranks, over)}
        gone = [side for side in self._stragglers if side not in stragglers]
        fresh = [each for side, each in stragglers.items() if side not in self._stragglers]
        told = [(each.rank, Condition.LATE, each.reason) for each in fresh]
        told += [
            (
                self._stragglers[side],
                Condition.BACK,
                f"rank {self._stragglers[side]} {side} in time again",
            )
            for side in gone
        ]
        self._stragglers = {side: each.rank for side, each in stragglers.items()}
        return [
            Verdict(
                time_ns=now_ns,
                since_ns=now_ns,
                condition=condition,
                source=rank,
                target=rank,
                rail=0,
                reason=reason,
            )
            for rank, condition, reason in told
        ]


def _alone(state: DirectionState, rails: Counter[int]) -> bool:
    """Return whether the rail of `state` is the only rail of its link."""
    return rails[state.source] + rails[state.target] == 1


def _began_ns(state: DirectionState) -> int:
    """Return the time at which the first of a direction's findings began."""
    shifts = (state.latency, state.bandwidth, state.loss)
    began = [shift.since_ns for shift in shifts if shift is not None]
    marks = (state.cut_since_ns, state.silent_since_ns)
    return min([*began, *(mark for mark in marks if mark is not None)])
