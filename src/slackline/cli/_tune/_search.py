"""The search for the fastest candidate by rounds of trials, and the verdict of fresh trials.

    round 1   defaults, A, B, C, D       A and C are faster than B and D: A, C and A with C stay
    round 2   A with C, C, A, defaults   A with C is the fastest
    at last   defaults, A with C, A with C, defaults, defaults, A with C        fresh trials

Every round tries the defaults too, and a candidate's score is the ratio of its step to that of the
defaults in the same round, since the speed of a shared machine changes from minute to minute. Every
other round runs in reverse order. After a round the faster half of the candidates stays. The
verdict rests on the fresh trials alone: among many candidates, the best score is partly luck.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

from slackline.cli._tune._candidates import DEFAULTS, Candidate, combined
from slackline.units import show_time

__all__ = ["PAIRS", "Attempt", "DefaultsFailedError", "Search", "Verdict", "most_candidates"]

PAIRS = 3
"""The number of fresh trials of the defaults and of the best candidate. If both are equally fast,
all trials of one are faster than all trials of the other in 1 of 20 searches."""


class DefaultsFailedError(Exception):
    """The failure of a trial with the defaults, which ends the search."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The outcome of one trial of a candidate."""

    stage: str
    """"round 1", "round 2" and so on, or "fresh"."""
    candidate: Candidate
    step_ns: float | None
    """The median duration of a step; None for a trial without a result."""
    reason: str = ""
    """The reason why there is no result, as a clause."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of a search."""

    best: Candidate
    """The settings to use; the defaults if no candidate has a confirmed gain."""
    tried: Candidate
    """The candidate of the fresh trials; the defaults if there were none."""
    gain: float
    """The step with the defaults divided by the step with `tried`, the median over the pairs of
    fresh trials; 1.0 without fresh trials."""
    lowest: float
    """The smallest of the pairs' ratios."""
    highest: float
    """The largest of the pairs' ratios."""
    reason: str
    """The reason for the verdict as a clause."""

    @classmethod
    def of_defaults(cls, reason: str) -> Self:
        """Return the verdict of a search that has compared no candidate in fresh trials."""
        return cls(best=DEFAULTS, tried=DEFAULTS, gain=1.0, lowest=1.0, highest=1.0, reason=reason)


@dataclass(kw_only=True)
class _Entry:
    candidate: Candidate
    ratios: list[float] = field(default_factory=list)

    @property
    def score(self) -> float:
        """The median ratio of the candidate's step to the step with the defaults."""
        return statistics.median(self.ratios)


def _halved(count: int) -> int:
    return max(1, count // 2)


def _trials(count: int) -> int:
    """Return the largest number of trials of a search over `count` candidates."""
    total, combines = 2 * PAIRS, True
    while count > 1:
        total += count + 1
        count = _halved(count) + combines
        combines = False
    return total


def most_candidates(asked: int, left_s: float, trial_s: float) -> int:
    """Return how many of `asked` candidates a search can try in `left_s` seconds, possibly 0.

    A trial takes `trial_s` seconds.
    """
    fits = (count for count in range(asked, 0, -1) if _trials(count) * trial_s <= left_s)
    return next(fits, 0)


class Search:
    """A search over candidates; `attempts` has the outcomes of its trials so far."""

    def __init__(
        self,
        attempt: Callable[[str, Candidate], Attempt],
        *,
        time_for: Callable[[int], bool],
        say: Callable[[str], None],
    ) -> None:
        """Create a search that tries each candidate by a call of `attempt` with its stage.

        `time_for` returns whether the budget suffices for a number of trials; `say` receives a line
        for each decision.
        """
        self.attempts: list[Attempt] = []
        self._attempt = attempt
        self._time_for = time_for
        self._say = say

    def run(self, candidates: Sequence[Candidate]) -> Verdict:
        """Try at least one candidate and return the verdict.

        Raises DefaultsFailedError if a trial with the defaults has no result.
        """
        entries = [_Entry(candidate=each) for each in candidates]
        number = 0
        combines = True
        while len(entries) > 1 and self._time_for(len(entries) + 1 + 2 * PAIRS):
            number += 1
            self._round(number, entries)
            ranked = sorted((each for each in entries if each.ratios), key=lambda each: each.score)
            faster = [each for each in ranked if each.score < 1]
            if not faster:
                return Verdict.of_defaults(
                    "no candidate was faster than the defaults in its first trials"
                )
            kept = faster[: _halved(len(entries))]
            dropped = [each for each in entries if each not in kept]
            if combines and len(faster) > 1:
                both = combined(faster[0].candidate, faster[1].candidate)
                kept += [] if both is None else [_Entry(candidate=both)]
            combines = False
            self._say(f"dropped: {'; '.join(str(each.candidate) for each in dropped)}")
            entries = kept
        # A combination that no round has tried ranks behind the candidates with a score.
        best = min(entries, key=lambda each: each.score if each.ratios else 1.0)
        return self._confirm(best.candidate)

    def _round(self, number: int, entries: Sequence[_Entry]) -> None:
        """Try the defaults and every entry once, and add the entry's ratio to the defaults."""
        order: list[_Entry | None] = [None, *entries]
        if number % 2 == 0:
            order.reverse()
        times: list[tuple[_Entry, float]] = []
        usual_ns = 0.0
        for entry in order:
            if entry is None:
                usual_ns = self._defaults(f"round {number}")
                continue
            tried = self._try(f"round {number}", entry.candidate)
            if tried.step_ns is None:
                entry.ratios.clear()
            else:
                times.append((entry, tried.step_ns))
        for entry, step_ns in times:
            entry.ratios.append(step_ns / usual_ns)

    def _confirm(self, candidate: Candidate) -> Verdict:
        """Compare a candidate with the defaults in fresh trials."""
        usual_ns: list[float] = []
        best_ns: list[float] = []
        for pair in range(PAIRS):
            for usual in (True, False) if pair % 2 == 0 else (False, True):
                if usual:
                    usual_ns.append(self._defaults("fresh"))
                    continue
                tried = self._try("fresh", candidate)
                if tried.step_ns is None:
                    return Verdict.of_defaults(
                        f"a fresh trial of {candidate} has no result: {tried.reason}"
                    )
                best_ns.append(tried.step_ns)
        ratios = [usual / best for usual, best in zip(usual_ns, best_ns, strict=True)]
        confirmed = max(best_ns) < min(usual_ns)
        slowest = f"{show_time(max(best_ns))} a step with {candidate}"
        fastest = f"{show_time(min(usual_ns))} with the defaults"
        relation = "is less than" if confirmed else "is not less than"
        return Verdict(
            best=candidate if confirmed else DEFAULTS,
            tried=candidate,
            gain=statistics.median(ratios),
            lowest=min(ratios),
            highest=max(ratios),
            reason=f"of {PAIRS} fresh trials each, the slowest, {slowest}, {relation} the fastest, "
            f"{fastest}",
        )

    def _defaults(self, stage: str) -> float:
        tried = self._try(stage, DEFAULTS)
        if tried.step_ns is None:
            raise DefaultsFailedError(f"a trial with the defaults has no result: {tried.reason}")
        return tried.step_ns

    def _try(self, stage: str, candidate: Candidate) -> Attempt:
        tried = self._attempt(stage, candidate)
        self.attempts.append(tried)
        took = tried.reason if tried.step_ns is None else f"{show_time(tried.step_ns)} a step"
        self._say(f"{stage}: {candidate}: {took}")
        return tried
