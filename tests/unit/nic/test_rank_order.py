"""Tests of all_reduces that ask for rank order in a group that adds in another order."""

from typing import Any, cast

import numpy as np
import pytest

from slackline.nic import Group, NicOptions, Operation
from slackline.testing import run_ranks
from slackline.testing.reference import bfloat16_bits, reduce_arrays
from slackline.wire import DType, ReduceOp

ARENA = 64 << 20
COUNTS = [1, 2, 7, 16, 33, 1000, 4099, 40_000]
LARGE = 2.0**27
"""A number to which fp32 cannot add a small one."""


def values(rank: int, count: int) -> Any:
    """Return one rank's bf16 elements as bits.

    Two ranks' large numbers cancel, so that the order of a sum shows.
    """
    drawn = np.random.default_rng([rank, count]).normal(size=count)
    drawn[rank % 2 :: 3] += LARGE if rank < 2 else -LARGE
    return bfloat16_bits(drawn.astype(np.float32))


@pytest.mark.parametrize(
    ("ranks", "rails", "plan"),
    [
        (2, ("tcp",), "auto"),
        (3, ("tcp",), "auto"),
        (3, ("udp",), "auto"),
        (3, ("shm",), "auto"),
        (4, ("tcp",), "auto"),
        (4, ("tcp",), "ring"),
        (4, ("shm",), "torus"),
        (4, ("tcp",), "mesh"),
        (6, ("tcp",), "auto"),  # a group that makes most of its links later
    ],
)
def test_sums_of_bf16_are_rounded_once_in_the_order_of_the_ranks(
    ranks: int, rails: tuple[str, ...], plan: str
) -> None:
    def body(group: Group) -> list[Any]:
        assert not group.rank_ordered
        results = []
        for op in (ReduceOp.SUM, ReduceOp.AVG):
            for count in COUNTS:
                data = values(group.rank, count)
                at = data.ctypes.data
                operation = Operation.all_reduce(
                    at, at, count, DType.BFLOAT16, op, tag=1, rank_order=True
                )
                prepared = group.prepare(operation)
                prepared.post().wait()
                results.append(data.copy())
                data[:] = values(group.rank, count)
                group.post(operation, blocking=True)
                results.append(data)
        return results

    options = NicOptions(order="any", plan=plan, rails=rails, arena_bytes=ARENA)
    wanted = [
        reduce_arrays([values(rank, count) for rank in range(ranks)], op, DType.BFLOAT16).tobytes()
        for op in (ReduceOp.SUM, ReduceOp.AVG)
        for count in COUNTS
        for _ in range(2)
    ]
    for results in run_ranks(ranks, body, options=options):
        assert [found.tobytes() for found in results] == wanted


def test_a_sum_in_any_order_has_other_bits_than_one_in_rank_order() -> None:
    """Check that the numbers of the test above tell the orders apart."""

    def body(group: Group) -> Any:
        data = values(group.rank, 1000)
        at = data.ctypes.data
        group.all_reduce(at, at, 1000, DType.BFLOAT16, ReduceOp.SUM, blocking=True)
        return data

    options = NicOptions(order="any", plan="ring", rails=("tcp",), arena_bytes=ARENA)
    ordered = reduce_arrays([values(r, 1000) for r in range(4)], ReduceOp.SUM, DType.BFLOAT16)
    assert (run_ranks(4, body, options=options)[0] != ordered).any()


@pytest.mark.parametrize("plan", ["auto", "ring", "direct"])
def test_the_plan_in_rank_order_is_one_that_adds_once(plan: str) -> None:
    def body(group: Group) -> list[tuple[str, str]]:
        found = [
            cast(Any, group).plan_for(nbytes, DType.BFLOAT16, rank_order=True)
            for nbytes in (64, 1 << 26)
        ]
        return [(each.name, each.reason) for each in found]

    options = NicOptions(order="any", plan=plan, rails=("tcp",), arena_bytes=ARENA)
    first, *others = run_ranks(3, body, options=options)
    assert others == [first, first]
    small, large = first
    if plan == "direct":
        assert small == large == ("direct", "asked for by name")
    else:
        assert {small[0], large[0]} <= {"direct", "mesh"}
        assert all(reason.endswith("; rank order is asked for") for _, reason in first)
