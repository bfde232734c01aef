"""Tests of the step times of a whole run, in bounded memory."""

from array import array

import pytest

from slackline.history import StepHistory, Steps


def test_neighbours_are_merged_when_all_entries_are_used() -> None:
    history = StepHistory(4)
    for number in range(9):
        history.add(Steps(1, 10 + number, 10 + number, 1, 100 + number))
    assert history.width == 4
    assert history.entries == [
        Steps(4, 10 + 11 + 12 + 13, 13, 4, 103, array("q", [10, 11, 12, 13])),
        Steps(4, 14 + 15 + 16 + 17, 17, 4, 107, array("q", [14, 15, 16, 17])),
        Steps(1, 18, 18, 1, 108, array("q", [18])),
    ]


@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 5000, 20_000])
def test_no_step_is_lost_and_the_memory_is_bounded(count: int) -> None:
    history = StepHistory()
    for _ in range(count):
        history.add(Steps(1, 7, 7, 2, 0))
    assert len(history.entries) <= 512
    assert sum(entry.count for entry in history.entries) == count
    assert sum(entry.wall_ns for entry in history.entries) == 7 * count
    assert all(entry.count == history.width for entry in history.entries[:-1])


def test_at_most_16_durations_of_an_entry_are_kept_evenly_chosen() -> None:
    history = StepHistory(2)
    for number in range(140):
        history.add(Steps(1, number, number, 0, number))
    assert history.width == 128
    kept = [list(entry.sample_ns) for entry in history.entries]
    assert kept == [list(range(0, 128, 8)), [128, 136]]
    assert [list(entry.sample_ns) for entry in history.by(256)] == [list(range(0, 140, 16))]


def test_times_without_a_step_belong_to_the_latest_step() -> None:
    history = StepHistory()
    history.add(Steps(1, 10, 10, 1, 100))
    history.add(Steps(0, 0, 0, 5, 101))
    history.add(Steps(1, 20, 20, 2, 102))
    assert [(entry.count, entry.exposed_ns) for entry in history.entries] == [(1, 6), (1, 2)]


def test_a_coarser_view_sums_up_whole_entries() -> None:
    history = StepHistory(8)
    for number in range(5):
        history.add(Steps(1, 1, 1, 0, number))
    assert [(entry.count, entry.ended_ns) for entry in history.by(2)] == [(2, 1), (2, 3), (1, 4)]
    assert len(history.entries) == 5
