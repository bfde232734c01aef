"""Tests of the state of a series of long all_reduces: when traffic counts are exchanged."""

import pytest

from slackline.health import Balance
from slackline.nic.collectives._share_series import Series, next_interval

MS = 10**9
"""Picoseconds in a millisecond."""


def due_after(interval: int, sizes: list[int]) -> list[int]:
    """Return the numbers of the slices after which an exchange of traffic counts is due."""
    series = Series(Balance(mesh=True), interval=interval)
    due = []
    for number, size in enumerate(sizes):
        series.sizes.append(size)
        series.intervals[number] = interval
        series.ended.add(number)
        if series.end_next():
            due.append(number)
    assert (series.exchanged, series.ended, series.intervals) == (len(sizes), set(), {})
    return due


@pytest.mark.parametrize(
    ("interval", "size", "expected"),
    [
        (100, 100, [0, 1, 2, 3, 4, 5]),
        (149, 100, [0, 1, 2, 3, 4, 5]),
        (151, 100, [1, 3, 5]),
        (300, 100, [2, 5]),
        (10, 100, [0, 1, 2, 3, 4, 5]),
        (1000, 100, []),
    ],
)
def test_an_exchange_is_due_at_the_end_of_a_slice_nearest_to_the_interval(
    interval: int, size: int, expected: list[int]
) -> None:
    assert due_after(interval, [size] * 6) == expected


def test_the_interval_counts_bytes_and_not_slices() -> None:
    assert due_after(150, [50, 50, 50, 200, 60, 60, 60]) == [2, 3, 5]


@pytest.mark.parametrize(
    ("interval", "pace", "expected"),
    [
        (2_000_000, 62_800, 2_388_535),  # 200 Mbit/s, four ranks
        (6_000_000, 12_500, 12_000_000),  # 1 Gbit/s
        (6_000_000, 1, 12_000_000),
        (6_000_000, 150 * MS, 3_000_000),
        (1, 150 * MS, 1),
        (6_000_000, None, 6_000_000),
        (6_000_000, 0, 6_000_000),
    ],
)
def test_the_interval_is_the_traffic_of_150_ms_and_changes_by_a_factor_of_two_at_most(
    interval: int, pace: int | None, expected: int
) -> None:
    assert next_interval(interval, pace) == expected
