"""Tests of the state of a series of slices: when exchanges are due, and which slices share shares.

"Shares" are the weights of the ranks in a slice, "slice" is a part of an all_reduce.
"""

from collections import deque

from slackline.nic.collectives._share_series import Epoch, Series, Slice
from slackline.plan.collective import Balance

FAILURE = (2, "the ranks disagree", 0, 1, -1, -1)


def series() -> Series:
    """Return a series of 3 ranks with slices of 100 bytes."""
    first = Epoch(0, decided=True)
    return Series(-1, 3, 100, Balance(mesh=True), deque([first]), {})


def post(of: Series, sizes: list[int]) -> list[Slice]:
    return [of.post(size) for size in sizes]


def test_an_exchange_is_due_after_one_and_a_half_times_the_bytes_of_a_slice() -> None:
    one = series()
    slices = post(one, [100, 100, 100, 149, 1, 50, 99, 1, 300])
    assert [each.number for each in slices] == list(range(9))
    assert [each.number for each in slices if each.measured] == [1, 3, 6, 8]
    assert [exchange.number for exchange in one.due] == [1, 3, 6, 8]
    assert {len(exchange.memory) for exchange in one.due} == {2 * 3 * 3}


def test_a_decision_after_slice_k_holds_from_slice_k_plus_3_to_the_next_decision() -> None:
    one = series()
    slices = post(one, [100, 50, 10, 10, 10, 10, 110, 1, 1, 1, 1])
    first = slices[0].shares
    by_1, by_6 = (exchange.epoch for exchange in one.due)
    assert (by_1.first, by_6.first) == (4, 9)
    assert [each.shares is first for each in slices] == [True] * 4 + [False] * 7
    assert [each.shares is by_1.shares for each in slices] == [False] * 4 + [True] * 5 + [False] * 2
    assert [each.shares is by_6.shares for each in slices] == [False] * 9 + [True] * 2


def test_a_failed_series_has_no_exchanges_and_one_last_epoch() -> None:
    one = series()
    slices = post(one, [150] * 4)
    running, *due = (exchange.epoch for exchange in one.due)
    one.running.append(one.due.popleft())
    *unknown, last = one.fail(FAILURE)
    assert unknown == [running, *due]
    assert one.failure == FAILURE
    assert not one.due
    assert not one.running
    later = post(one, [150] * 5)
    assert [each.number for each in later] == [4, 5, 6, 7, 8]
    assert all(each.shares is last.shares and not each.measured for each in later)
    assert slices[-1].shares is running.shares
