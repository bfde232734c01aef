"""Tests of the wait for values in a store while another rank may fail."""

import time

import pytest

from slackline.errors import PeerError
from slackline.nic.connect import wait_until


def failing() -> None:
    raise PeerError("rank 1 could not open the group", rank=0, peer=1)


def test_a_value_that_came_just_before_the_other_ranks_failure_is_taken() -> None:
    answers = iter([False, True])
    assert wait_until(lambda: next(answers), time.monotonic() + 60, 2, failing)


def test_the_failure_of_another_rank_ends_a_wait_without_a_value() -> None:
    with pytest.raises(PeerError, match=r"^rank 1 could not open the group$"):
        wait_until(lambda: False, time.monotonic() + 60, 2, failing)
