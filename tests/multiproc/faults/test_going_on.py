"""Tests of the objects that remain usable after an error."""

import numpy as np
import pytest

from slackline.errors import MismatchError
from slackline.nic import Group, NicOptions
from slackline.testing import run_ranks
from slackline.wire import DType, ReduceOp

RAILS = ("shm", "tcp")


@pytest.mark.parametrize("rail", RAILS)
def test_a_group_goes_on_after_a_disagreement_when_all_ranks_go_on_alike(rail: str) -> None:
    options = NicOptions(rails=(rail,), arena_bytes=64 << 20, plan="direct")

    def body(group: Group) -> list[float]:
        odd = np.ones(100 + group.rank, np.float32)
        at = odd.ctypes.data
        with pytest.raises(MismatchError):
            group.all_reduce(at, at, odd.size, DType.FLOAT32, ReduceOp.SUM, blocking=True)
        even = np.full(10, group.rank + 1, np.float32)
        at = even.ctypes.data
        group.all_reduce(at, at, even.size, DType.FLOAT32, ReduceOp.SUM, blocking=True)
        return even.tolist()

    assert run_ranks(3, body, options=options) == [[6.0] * 10] * 3
