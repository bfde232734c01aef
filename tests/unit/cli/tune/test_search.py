"""Tests of the search: turns, candidates that are dropped, and the verdict of fresh trials.

A trial's step time is computed here from the candidate and the trial's number, so that each test
knows the fastest candidate.
"""

from collections.abc import Callable

import pytest

from slackline.cli._tune._candidates import DEFAULTS, Candidate
from slackline.cli._tune._search import (
    PAIRS,
    Attempt,
    DefaultsFailedError,
    Search,
    Verdict,
    most_candidates,
)

MS = 1_000_000
RING = Candidate(settings={"plan": "ring"})
MESH = Candidate(settings={"plan": "mesh"})
LONG = Candidate(settings={"segment": "1MiB"})
UDP = Candidate(settings={"rails": "udp"})


class Trials:
    """Trials with known step times, in milliseconds: `step_ms(candidate, number of the trial)`."""

    def __init__(self, step_ms: Callable[[Candidate, int], float | None]) -> None:
        self.order: list[tuple[str, str]] = []
        self._step_ms = step_ms

    def __call__(self, stage: str, candidate: Candidate) -> Attempt:
        step_ms = self._step_ms(candidate, len(self.order))
        self.order.append((stage, str(candidate)))
        if step_ms is None:
            return Attempt(stage=stage, candidate=candidate, step_ns=None, reason="it failed")
        return Attempt(stage=stage, candidate=candidate, step_ns=step_ms * MS)


def search(
    trials: Trials, *candidates: Candidate, most_trials: int = 1000
) -> tuple[Verdict, list[str]]:
    said: list[str] = []
    found = Search(
        trials, time_for=lambda count: len(trials.order) + count <= most_trials, say=said.append
    )
    verdict = found.run(candidates)
    assert [(each.stage, str(each.candidate)) for each in found.attempts] == trials.order
    return verdict, said


def constant(**step_ms: float) -> Callable[[Candidate, int], float]:
    """Return step times by the values of the settings; the product of the ratios to 10 ms."""

    def of(candidate: Candidate, number: int) -> float:
        found = 10.0
        for value in candidate.settings.values():
            found *= step_ms[value] / 10
        return found

    return of


def test_the_fastest_combination_wins_after_halving_and_reversed_turns() -> None:
    times = {"ring": 9.0, "mesh": 11.0, "1MiB": 8.0, "udp": 9.5}
    trials = Trials(constant(**times))
    verdict, said = search(trials, RING, MESH, LONG, UDP)
    both = "segment 1MiB, plan ring"
    assert trials.order == [
        *(("round 1", name) for name in ("defaults", "plan ring", "plan mesh", "segment 1MiB")),
        ("round 1", "rails udp"),
        *(("round 2", name) for name in (both, "plan ring", "segment 1MiB", "defaults")),
        *(("fresh", name) for name in ("defaults", both, both, "defaults", "defaults", both)),
    ]
    assert verdict.best == verdict.tried == Candidate(settings={"segment": "1MiB", "plan": "ring"})
    assert verdict.gain == pytest.approx(10 / 7.2)
    assert (verdict.lowest, verdict.highest) == pytest.approx((10 / 7.2, 10 / 7.2))
    assert verdict.reason == (
        "of 3 fresh trials each, the slowest, 7.2 ms a step with segment 1MiB, plan ring, is "
        "less than the fastest, 10 ms with the defaults"
    )
    assert said[5] == "dropped: plan mesh; rails udp"


def test_a_candidate_whose_fresh_trials_are_not_all_faster_leaves_the_defaults() -> None:
    # One candidate skips the rounds: its trials are numbers 1, 2 and 5.
    trials = Trials(lambda candidate, number: {1: 8.0, 2: 9.0, 5: 10.5}.get(number, 10.0 + number))
    verdict, _ = search(trials, RING)
    assert trials.order == [
        ("fresh", name)
        for name in ("defaults", "plan ring", "plan ring", "defaults", "defaults", "plan ring")
    ]
    assert (verdict.best, verdict.tried) == (DEFAULTS, RING)
    assert (verdict.lowest, verdict.gain, verdict.highest) == pytest.approx(
        (10 / 8, 14 / 10.5, 13 / 9)
    )
    assert verdict.reason == (
        "of 3 fresh trials each, the slowest, 10.5 ms a step with plan ring, is not less than "
        "the fastest, 10 ms with the defaults"
    )


def test_the_verdict_forgets_the_rounds() -> None:
    # The ring is fast in the first round, which has 3 trials, and slow ever after.
    def step_ms(candidate: Candidate, number: int) -> float:
        return 10.0 if candidate == DEFAULTS else 5.0 if number < 3 else 12.0

    verdict, _ = search(Trials(step_ms), RING, MESH)
    assert (verdict.best, verdict.tried) == (DEFAULTS, RING)
    assert verdict.gain == pytest.approx(10 / 12)


def test_no_fresh_trials_follow_where_no_candidate_was_faster() -> None:
    trials = Trials(constant(ring=10.0, mesh=11.0))
    verdict, _ = search(trials, RING, MESH)
    assert len(trials.order) == 3
    assert (verdict.best, verdict.tried) == (DEFAULTS, DEFAULTS)
    assert verdict.reason == "no candidate was faster than the defaults in its first trials"


def test_a_candidate_without_a_result_is_dropped() -> None:
    step_ms = {str(DEFAULTS): 10.0, str(RING): None, str(LONG): 9.0}
    verdict, said = search(Trials(lambda candidate, _: step_ms[str(candidate)]), RING, LONG)
    assert (said[1], said[3]) == ("round 1: plan ring: it failed", "dropped: plan ring")
    assert verdict.best == LONG


def test_a_candidate_that_fails_in_a_fresh_trial_leaves_the_defaults() -> None:
    trials = Trials(lambda candidate, number: None if number == 2 else 10.0 - number)
    verdict, _ = search(trials, RING)
    assert verdict.best == DEFAULTS
    assert verdict.reason == "a fresh trial of plan ring has no result: it failed"


def test_a_failure_of_the_defaults_ends_the_search() -> None:
    with pytest.raises(DefaultsFailedError) as caught:
        search(Trials(lambda candidate, number: None), RING)
    assert str(caught.value) == "a trial with the defaults has no result: it failed"


def test_rounds_end_when_the_fresh_trials_need_the_rest_of_the_time() -> None:
    trials = Trials(constant(**{"ring": 9.0, "mesh": 8.0, "1MiB": 7.0, "udp": 9.5}))
    verdict, _ = search(trials, RING, MESH, LONG, UDP, most_trials=5 + 2 * PAIRS)
    assert [stage for stage, _ in trials.order] == ["round 1"] * 5 + ["fresh"] * 6
    assert verdict.best == LONG


@pytest.mark.parametrize(
    ("asked", "trials", "expected"),
    # Four candidates need 5 + 4 + 6 trials, three 4 + 3 + 6, two 3 + 3 + 6, one only the 6.
    [(4, 15, 4), (4, 14, 3), (4, 13, 3), (4, 12, 2), (4, 11, 1), (4, 6, 1), (4, 5, 0), (2, 99, 2)],
)
def test_the_budget_limits_the_number_of_candidates(asked: int, trials: int, expected: int) -> None:
    assert most_candidates(asked, left_s=2.0 * trials, trial_s=2.0) == expected
