"""Tests that the engine's all_reduce is bit-identical to the reference, for every plan and type."""

from collections.abc import Sequence

import pytest
from conformance_vectors import (
    EVERY_CASE,
    FEW_CASES,
    LONG,
    LONG_CASES,
    PLANS,
    RAILS,
    RANK_ORDERED,
    SPECIAL_CASES,
    THREAD_MODES,
    Case,
    Order,
    at,
    memory,
    options,
    same_bits,
    thread_modes,
)

from slackline.nic import Group, NicOptions
from slackline.testing import run_ranks
from slackline.testing.reference import Array
from slackline.wire import DType, ReduceOp

QUICK_RANKS = (1, 2, 3, 4)
EVERY_RANKS = range(1, 9)
SETTINGS = [(plan, "any") for plan in PLANS] + [(plan, "rank") for plan in RANK_ORDERED]


def reduce_case(
    group: Group, case: Case, *, in_place: bool, registered: bool, blocking: bool, modes: int
) -> Array:
    """Perform an all_reduce in a thread with these floating-point modes and return its result.
    Check that an out-of-place call leaves its source unchanged."""
    mine = case.inputs(group.size)[group.rank]
    with memory(group, registered=registered) as room:
        source = room.hold(mine)
        target = source if in_place else room.empty(mine.size, case.dtype)
        with thread_modes(modes):
            transfer = group.all_reduce(
                at(source), at(target), mine.size, case.dtype, case.op, blocking=blocking
            )
            transfer.wait()
        assert in_place or source.tobytes() == mine.tobytes(), f"{case}: the source was changed"
        return target.copy()


def run_cases(cases: Sequence[Case], ranks: int, how: NicOptions) -> list[list[Array]]:
    """Return the result of each case on each rank. The cases alternate between the ways of calling
    (in place, registered, blocking), and each rank's thread between all floating-point modes."""

    def body(group: Group) -> list[Array]:
        return [
            reduce_case(
                group,
                case,
                in_place=index % 2 == 0,
                registered=index % 3 == 0,
                blocking=index % 5 < 3,
                modes=(5 * index + 3 * group.rank) % THREAD_MODES,
            )
            for index, case in enumerate(cases)
        ]

    return run_ranks(ranks, body, options=how)


def check(cases: Sequence[Case], plan: str, order: Order, ranks: int, how: NicOptions) -> None:
    results = run_cases(cases, ranks, how)
    for index, case in enumerate(cases):
        expected = case.expected(plan, ranks, order)
        for rank in range(ranks):
            assert same_bits(results[rank][index], expected, case.dtype), f"{case} on rank {rank}"


@pytest.mark.parametrize("ranks", QUICK_RANKS)
@pytest.mark.parametrize("rail", RAILS)
@pytest.mark.parametrize(("plan", "order"), SETTINGS)
def test_an_all_reduce_has_the_bits_of_the_reference(
    plan: str, order: Order, rail: str, ranks: int
) -> None:
    check(FEW_CASES, plan, order, ranks, options(plan=plan, order=order, rails=(rail,)))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", EVERY_RANKS)
@pytest.mark.parametrize("rail", RAILS)
@pytest.mark.parametrize(("plan", "order"), SETTINGS)
def test_every_all_reduce_has_the_bits_of_the_reference(
    plan: str, order: Order, rail: str, ranks: int
) -> None:
    cases = (*EVERY_CASE, *LONG_CASES, *SPECIAL_CASES)
    check(cases, plan, order, ranks, options(plan=plan, order=order, rails=(rail,)))


@pytest.mark.parametrize("rail", RAILS)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("ranks", [5, pytest.param(7, marks=pytest.mark.slow)])
def test_a_number_of_ranks_that_is_no_power_of_two_is_served_by_every_plan(
    ranks: int, plan: str, rail: str
) -> None:
    cases = [
        Case(dtype=dtype, op=ReduceOp.AVG, count=count)
        for dtype in (DType.FLOAT32, DType.FLOAT16, DType.INT16)
        for count in (1, 1000, 40_009)
    ]
    check(cases, plan, "any", ranks, options(plan=plan, order="any", rails=(rail,)))


SAME_EVERYWHERE = [
    Case(dtype=dtype, op=op, count=count)
    for dtype in (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64)
    for op in (ReduceOp.SUM, ReduceOp.AVG)
    for count in (1000, LONG)
]


@pytest.mark.parametrize(
    ("segment", "rails"),
    [
        (4096, ("shm",)),
        (65536, ("tcp",)),
        (4 << 20, ("shm", "tcp")),
        *(
            pytest.param(segment, rails, marks=pytest.mark.slow)
            for segment, rails in (
                (4096, ("tcp",)),
                (4096, ("shm", "tcp")),
                (65536, ("shm",)),
                (65536, ("shm", "tcp")),
                (4 << 20, ("shm",)),
                (4 << 20, ("tcp",)),
            )
        ),
    ],
)
@pytest.mark.parametrize("plan", ["auto", *RANK_ORDERED])
def test_in_rank_order_the_bits_depend_on_nothing_else(
    plan: str, rails: tuple[str, ...], segment: int
) -> None:
    how = options(
        plan=plan,
        order="rank",
        rails=rails,
        wire_segment_bytes=segment,
        memory_segment_bytes=segment,
    )
    check(SAME_EVERYWHERE, "direct", "rank", 3, how)


@pytest.mark.parametrize("rail", RAILS)
@pytest.mark.parametrize("plan", PLANS)
def test_small_windows_and_segments_change_no_bit(plan: str, rail: str) -> None:
    how = options(
        plan=plan,
        order="any",
        rails=(rail,),
        wire_segment_bytes=4096,
        memory_segment_bytes=4096,
        eager_bytes=4096,
    )
    cases = [
        Case(dtype=DType.FLOAT32, op=ReduceOp.SUM, count=1_500_001),
        Case(dtype=DType.BFLOAT16, op=ReduceOp.AVG, count=LONG),
        Case(dtype=DType.UINT8, op=ReduceOp.BXOR, count=LONG),
    ]
    check(cases, plan, "any", 3, how)


@pytest.mark.parametrize("plan", PLANS)
def test_a_link_of_three_connections_changes_no_bit(plan: str) -> None:
    cases = [
        Case(dtype=DType.FLOAT32, op=ReduceOp.SUM, count=count) for count in (1, 1000, 1_500_001)
    ]
    check(cases * 3, plan, "any", 3, options(plan=plan, order="any", rails=("tcp",), connections=3))


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("plan", RANK_ORDERED)
def test_special_values_obey_the_reference(plan: str, ranks: int) -> None:
    for rail in RAILS:
        check(SPECIAL_CASES, plan, "rank", ranks, options(plan=plan, order="rank", rails=(rail,)))
