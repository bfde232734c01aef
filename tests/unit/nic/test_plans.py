"""Which plan a group with devices takes, and for what."""

import pytest

from slackline.errors import UsageError
from slackline.nic import NicOptions
from slackline.nic._circuit_nic import Devices
from slackline.nic._plans import PlanBook, starts
from slackline.plan.collective import Collective, generate
from slackline.wire import DType, ReduceOp

FP32, BF16, SUM = DType.FLOAT32, DType.BFLOAT16, ReduceOp.SUM


def book(plan: str, device_bytes: int = 8192, order: str = "auto") -> PlanBook:
    options = NicOptions(plan=plan, order=order)
    return PlanBook(0, 4, options, all_shared=True, one_host=True, device_bytes=device_bytes)


def test_devices_add_in_rank_order_unless_the_rotating_ring_is_asked_for() -> None:
    for order in ("auto", "rank", "any"):
        default = book("auto", order=order)
        assert (default.order, default.all_reduce(4096, FP32, SUM).name) == (
            "rank",
            "reduce-broadcast",
        )
    rotating = book("ring")
    assert rotating.order == "any"
    chosen = rotating.all_reduce(4096, FP32, SUM)
    assert (chosen.name, chosen.reason) == ("ring", "ranks have devices that add")


def test_a_rotating_ring_leaves_half_types_to_the_engines() -> None:
    """Software rounds them at every rank, a device at the end."""
    why = [book(plan).all_reduce(4096, BF16, SUM).reason for plan in ("auto", "ring")]
    assert why == ["ranks have devices that add", "asked for by name"]
    assert book("ring").all_reduce(4096, BF16, SUM).name == "ring"


def test_rank_order_and_a_rotating_ring_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="the plan 'ring' does not sum in rank order"):
        book("ring", order="rank")


def test_where_chunks_of_plans_that_go_round_open() -> None:
    assert starts(generate(Collective.ALL_REDUCE, "reduce-broadcast", 4)) == [0]
    assert starts(generate(Collective.ALL_REDUCE, "ring", 4)) == [1, 2, 3, 0]
    assert starts(generate(Collective.ALL_REDUCE, "ring", 2)) == [1, 0]


def test_a_ring_needs_room_for_what_begins_at_each_rank() -> None:
    twins = Devices("twin")
    twins.ring(3, 64, 1, 3, 64).close()
    words = "a twin has room for operations of 64 ranks, not 65: leave the plan to be chosen"
    with pytest.raises(UsageError, match=words):
        twins.ring(3, 65, 1, 3, 65)
