"""Tests of the change detector and of the baseline that it learns."""

from hypothesis import given
from hypothesis import strategies as st

from slackline.detect._baseline import Baseline
from slackline.detect._cusum import Cusum
from slackline.detect._runs import Runs


def _cusum() -> Cusum:
    return Cusum(evidence=3, recovery_evidence=4)


def _feed(cusum: Cusum, readings: list[float], start: int = 0) -> list[int]:
    """Return the indices of the readings at which the state changed."""
    return [
        place
        for place, reading in enumerate(readings, start)
        if cusum.take(reading, 1.0, place * 10)
    ]


def test_three_clear_readings_in_a_row_are_a_change_that_began_with_the_first() -> None:
    cusum = _cusum()
    assert _feed(cusum, [0, 0, 5, 5, 5, 5]) == [4]
    assert cusum.active
    assert cusum.since_ns == 20


def test_a_change_ends_when_clear_readings_outweigh_the_others_by_four() -> None:
    cusum = _cusum()
    _feed(cusum, [5, 5, 5])
    assert _feed(cusum, [5, 0, 0, 5, 0, 0, 0, 0, 0], 3) == [9]
    assert not cusum.active
    assert cusum.since_ns == 40


def test_between_the_two_thresholds_nothing_changes() -> None:
    cusum = _cusum()
    assert _feed(cusum, [0.99] * 100) == []
    _feed(cusum, [5, 5, 5])
    assert _feed(cusum, [2.51] * 100) == []
    assert cusum.active


@given(st.lists(st.floats(0, 0.999), max_size=60))
def test_readings_below_what_counts_never_make_a_change(readings: list[float]) -> None:
    assert _feed(_cusum(), readings) == []


@given(
    st.lists(st.sampled_from([0.0, 100.0]), max_size=60).filter(
        lambda readings: "XXX" not in "".join("X" if x else "." for x in readings)
    )
)
def test_outliers_that_are_followed_by_as_many_calm_readings_never_make_one(
    readings: list[float],
) -> None:
    spaced = [x for reading in readings for x in (reading, 0.0)]
    assert _feed(_cusum(), spaced) == []


@given(
    st.lists(st.floats(-5, 5), max_size=30),
    st.floats(2.0, 1e6),
    st.integers(0, 100),
)
def test_a_clear_change_is_found_whatever_came_before(
    before: list[float], size: float, start: int
) -> None:
    cusum = _cusum()
    _feed(cusum, before, start)
    if not cusum.active:
        assert len(_feed(cusum, [size] * 3)) == 1


def test_the_usual_is_not_known_from_few_readings() -> None:
    baseline = Baseline(least=8, memory=64, every=4, noise_factor=6)
    for reading in range(7):
        baseline.add(float(reading))
    assert not baseline.known
    baseline.add(7.0)
    assert baseline.known
    assert baseline.middle == 4.0


def test_rare_outliers_do_not_move_the_middle_and_old_scatter_fades() -> None:
    baseline = Baseline(least=8, memory=64, every=4, noise_factor=6)
    for place in range(64):
        baseline.add(1000.0 if place % 8 == 0 else 10.0 + place % 3)
    assert baseline.middle == 11.0
    wide = baseline.scatter
    for _ in range(2000):
        baseline.add(10.0)
    assert 8 < wide < 15
    assert baseline.scatter < 1


def test_what_lasts_no_longer_than_usual_is_no_evidence() -> None:
    runs = Runs(least=3, sure=128, most=48)
    assert runs.evidence == 3
    for late in [False] * 128 + [True] * 5 + [False]:
        runs.take(late=late, told=False)
    assert 10.9 < runs.evidence <= 11
    for late in [False] * 10_000:
        runs.take(late=late, told=False)
    assert runs.evidence == 3


def test_at_first_it_takes_more_than_twice_what_was_seen() -> None:
    runs = Runs(least=3, sure=128, most=48)
    for late in [False] * 27 + [True] * 4 + [False]:
        runs.take(late=late, told=False)
    assert runs.evidence == 4 * 2 * 4 + 1


def test_a_verdict_that_did_not_outlast_its_evidence_twice_was_jitter() -> None:
    runs = Runs(least=3, sure=128, most=48)
    for late in [False] * 128 + [True] * 6 + [False]:
        runs.take(late=late, told=True)
    assert 12.9 < runs.evidence <= 13
    fault = Runs(least=3, sure=128, most=48)
    for late in [True] * 7 + [False]:
        fault.take(late=late, told=True)
    assert fault.evidence == 3
