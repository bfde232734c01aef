from collections.abc import Iterator

import numpy as np
import pytest

from slackline.errors import UsageError
from slackline.plan.collective import PLANS, Collective, CollectivePlan, generate, names
from slackline.testing.reference import (
    Array,
    bfloat16_bits,
    bfloat16_values,
    execute,
    numpy_dtype,
    reduce_arrays,
)
from slackline.wire import DType, ReduceOp

RANKS = (*range(1, 10), 16)
COUNT = 103
HALVES = (DType.FLOAT16, DType.BFLOAT16)
FLOATS = (DType.FLOAT32, DType.FLOAT64, *HALVES)
INTEGERS = tuple(dtype for dtype in DType if dtype not in (*FLOATS, DType.BOOL))
REDUCTIONS = [
    (dtype, op)
    for dtype in DType
    for op in ReduceOp
    if op is not ReduceOp.NONE
    and not (dtype in FLOATS and op >= ReduceOp.BAND)
    and not (dtype is DType.BOOL and op is ReduceOp.AVG)
]


def random_arrays(dtype: DType, ranks: int, count: int = COUNT) -> list[Array]:
    generator = np.random.default_rng(ranks)
    if dtype in FLOATS:
        values = generator.standard_normal((ranks, count)).astype(np.float32)
        if dtype is DType.BFLOAT16:
            return [bfloat16_bits(row) for row in values]
        return [row.astype(numpy_dtype(dtype)) for row in values]
    if dtype is DType.BOOL:
        return list(generator.integers(0, 2, (ranks, count)) > 0)
    info = np.iinfo(numpy_dtype(dtype))
    return list(generator.integers(info.min, info.max, (ranks, count), info.dtype, endpoint=True))


def all_reduce(
    plan: CollectivePlan, arrays: list[Array], op: ReduceOp, dtype: DType, **order: str
) -> list[Array]:
    outputs = execute(plan, [(array,) for array in arrays], op, dtype, **order)  # type: ignore[arg-type]
    return [output for (output,) in outputs]


def same(a: Array, b: Array) -> bool:
    """Return whether types and bits are equal, so that zeros of different sign differ."""
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


def plans(collective: Collective) -> Iterator[CollectivePlan]:
    for name in names(collective):
        for ranks in RANKS if collective is not Collective.POINT_TO_POINT else (1, 2):
            for root in range(ranks) if collective.rooted else (None,):
                yield generate(collective, name, ranks, root)


def test_every_all_reduce_gives_every_rank_the_sum() -> None:
    for plan in plans(Collective.ALL_REDUCE):
        arrays = random_arrays(DType.INT64, plan.ranks)
        expected = np.sum(arrays, axis=0)
        for output in all_reduce(plan, arrays, ReduceOp.SUM, DType.INT64):
            assert same(output, expected), str(plan)


@pytest.mark.parametrize("count", [0, 1, 17])
def test_buffers_may_be_shorter_than_the_plan_has_chunks(count: int) -> None:
    for plan in plans(Collective.ALL_REDUCE):
        arrays = random_arrays(DType.INT64, plan.ranks, count)
        for output in all_reduce(plan, arrays, ReduceOp.SUM, DType.INT64):
            assert same(output, np.sum(arrays, axis=0)), str(plan)


def test_every_reduce_gives_the_root_the_sum_and_the_others_nothing() -> None:
    for plan in plans(Collective.REDUCE):
        arrays = random_arrays(DType.INT64, plan.ranks)
        outputs = execute(plan, [(array,) for array in arrays], ReduceOp.SUM, DType.INT64)
        for rank, output in enumerate(outputs):
            assert len(output) == (rank == plan.root)
        assert plan.root is not None
        assert same(outputs[plan.root][0], np.sum(arrays, axis=0)), str(plan)


def test_every_reduce_scatter_gives_each_rank_the_sum_of_its_part() -> None:
    for plan in plans(Collective.REDUCE_SCATTER):
        n = plan.ranks
        parts = [random_arrays(DType.INT32, n, 5 + part) for part in range(n)]
        inputs = [[parts[part][rank] for part in range(n)] for rank in range(n)]
        outputs = execute(plan, inputs, ReduceOp.SUM, DType.INT32)
        for rank, (output,) in enumerate(outputs):
            expected = np.sum(parts[rank], axis=0, dtype=np.int32)
            assert same(output, np.asarray(expected)), str(plan)


def test_every_all_gather_gives_every_rank_every_part() -> None:
    for plan in plans(Collective.ALL_GATHER):
        parts = [np.full(rank, rank, np.uint8) for rank in range(plan.ranks)]
        outputs = execute(plan, [(part,) for part in parts], ReduceOp.NONE, DType.UINT8)
        for output in outputs:
            assert [each.tolist() for each in output] == [each.tolist() for each in parts]


@pytest.mark.parametrize("collective", [Collective.BROADCAST, Collective.POINT_TO_POINT])
def test_every_broadcast_gives_every_rank_the_buffer_of_the_root(collective: Collective) -> None:
    buffer = np.arange(COUNT, dtype=np.float32)
    for plan in plans(collective):
        inputs = [(buffer,) if rank == plan.root else () for rank in range(plan.ranks)]
        for (output,) in execute(plan, inputs, ReduceOp.NONE, DType.FLOAT32):
            assert same(output, buffer), str(plan)


def test_a_gather_and_a_scatter_undo_each_other() -> None:
    for gather in plans(Collective.GATHER):
        parts = [np.full(rank + 1, rank, np.uint8) for rank in range(gather.ranks)]
        gathered = execute(gather, [(part,) for part in parts], ReduceOp.NONE, DType.UINT8)
        for rank, output in enumerate(gathered):
            assert len(output) == (gather.ranks if rank == gather.root else 0)
        scatter = generate(Collective.SCATTER, "direct", gather.ranks, gather.root)
        scattered = execute(scatter, gathered, ReduceOp.NONE, DType.UINT8)
        for (result,), part in zip(scattered, parts, strict=True):
            assert same(result, part)


def test_an_all_to_all_transposes() -> None:
    for plan in plans(Collective.ALL_TO_ALL):
        n = plan.ranks
        inputs = [[np.full(i + j, i * n + j, np.int16) for j in range(n)] for i in range(n)]
        for rank, output in enumerate(execute(plan, inputs, ReduceOp.NONE, DType.INT16)):
            for i in range(n):
                assert same(output[i], inputs[i][rank])


def test_a_barrier_has_no_data() -> None:
    for plan in plans(Collective.BARRIER):
        inputs = [()] * plan.ranks
        assert execute(plan, inputs, ReduceOp.NONE, DType.UINT8) == ((),) * plan.ranks


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PROD, ReduceOp.MIN])
def test_plans_in_rank_order_have_the_bits_of_reduce_arrays(dtype: DType, op: ReduceOp) -> None:
    for plan in plans(Collective.ALL_REDUCE):
        if plan.rank_ordered and plan.ranks > 1:
            arrays = random_arrays(dtype, plan.ranks)
            expected = reduce_arrays(arrays, op, dtype)
            for output in all_reduce(plan, arrays, op, dtype, order="rank"):
                assert same(output, expected), str(plan)


@pytest.mark.parametrize(("dtype", "op"), REDUCTIONS)
def test_all_ranks_of_every_plan_end_with_the_same_bits(dtype: DType, op: ReduceOp) -> None:
    for name in names(Collective.ALL_REDUCE):
        arrays = random_arrays(dtype, 5)
        plan = generate(Collective.ALL_REDUCE, name, 5)
        outputs = all_reduce(plan, arrays, op, dtype)
        assert all(same(output, outputs[0]) for output in outputs)
        if dtype not in FLOATS:
            assert same(outputs[0], reduce_arrays(arrays, op, dtype)), name


def test_a_chain_in_any_order_rounds_half_types_at_each_hop() -> None:
    plan = generate(Collective.ALL_REDUCE, "reduce-broadcast", 3)
    arrays = [np.array([x], np.float16) for x in (2048, 1, 1)]
    assert all_reduce(plan, arrays, ReduceOp.SUM, DType.FLOAT16)[0] == 2048
    assert all_reduce(plan, arrays, ReduceOp.SUM, DType.FLOAT16, order="rank")[0] == 2050
    assert reduce_arrays(arrays, ReduceOp.SUM, DType.FLOAT16) == 2050


def test_the_last_add_divides_before_it_rounds() -> None:
    plan = generate(Collective.ALL_REDUCE, "ring", 2)
    arrays = [np.array([x], np.float16) for x in (65504, 65504)]
    assert all_reduce(plan, arrays, ReduceOp.AVG, DType.FLOAT16)[0] == 65504


def test_a_ring_adds_from_the_rank_behind_the_owner() -> None:
    plan = generate(Collective.ALL_REDUCE, "ring", 3)
    x = random_arrays(DType.FLOAT32, 3, 48)
    output = all_reduce(plan, x, ReduceOp.SUM, DType.FLOAT32)[1]
    assert same(output[:16], ((x[1] + x[2]) + x[0])[:16])
    assert same(output[16:32], ((x[2] + x[0]) + x[1])[16:32])
    assert same(output[32:], ((x[0] + x[1]) + x[2])[32:])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap_and_averages_go_towards_zero(dtype: DType) -> None:
    info = np.iinfo(numpy_dtype(dtype))
    top = np.array([info.max], info.dtype)
    one = np.array([1], info.dtype)
    assert reduce_arrays([top, one], ReduceOp.SUM, dtype) == info.min
    assert reduce_arrays([top, top], ReduceOp.PROD, dtype) == 1
    assert reduce_arrays([one, one, one * 5], ReduceOp.AVG, dtype) == 2
    if info.min < 0:
        assert reduce_arrays([-one, -one, -one * 5], ReduceOp.AVG, dtype) == -2
        assert reduce_arrays([top, one, 0 * one], ReduceOp.AVG, dtype) == -(-int(info.min) // 3)


def test_an_average_of_bytes_over_more_ranks_than_a_byte_counts_divides_by_the_true_number() -> (
    None
):
    arrays = [np.array([1], np.int8)] * 300
    assert reduce_arrays(arrays, ReduceOp.AVG, DType.INT8).tolist() == [0]
    assert reduce_arrays(arrays[:200], ReduceOp.SUM, DType.INT8).tolist() == [200 - 256]


def test_bool_reduces_as_logic() -> None:
    a, b = np.array([0, 0, 1, 1]) > 0, np.array([0, 1, 0, 1]) > 0
    table = {
        ReduceOp.SUM: [0, 1, 1, 1],
        ReduceOp.MAX: [0, 1, 1, 1],
        ReduceOp.BOR: [0, 1, 1, 1],
        ReduceOp.PROD: [0, 0, 0, 1],
        ReduceOp.MIN: [0, 0, 0, 1],
        ReduceOp.BAND: [0, 0, 0, 1],
        ReduceOp.BXOR: [0, 1, 1, 0],
    }
    for op, expected in table.items():
        result = reduce_arrays([a, b], op, DType.BOOL)
        assert result.dtype == np.bool_
        assert result.tolist() == [bool(each) for each in expected]


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64, DType.FLOAT16])
def test_minimum_and_maximum_keep_nan_and_the_second_of_equal_zeros(dtype: DType) -> None:
    kind = numpy_dtype(dtype)
    a = np.array([np.nan, 1, 0.0, -0.0, 1], kind)
    b = np.array([1, np.nan, -0.0, 0.0, 2], kind)
    low, high = (
        reduce_arrays([a, b], ReduceOp.MIN, dtype),
        reduce_arrays([a, b], ReduceOp.MAX, dtype),
    )
    assert np.isnan(low[:2]).all()
    assert np.isnan(high[:2]).all()
    assert np.signbit(low[2:4]).tolist() == np.signbit(high[2:4]).tolist() == [True, False]
    assert (low[4], high[4]) == (1, 2)


@pytest.mark.parametrize(
    ("op", "dtype", "message"),
    [
        (ReduceOp.BAND, DType.FLOAT32, "float32 has no reduction BAND"),
        (ReduceOp.BXOR, DType.BFLOAT16, "bfloat16 has no reduction BXOR"),
        (ReduceOp.AVG, DType.BOOL, "bool has no reduction AVG"),
        (ReduceOp.NONE, DType.INT8, "int8 has no reduction NONE"),
    ],
)
def test_what_is_no_reduction_is_refused(op: ReduceOp, dtype: DType, message: str) -> None:
    array = np.zeros(1, numpy_dtype(dtype))
    with pytest.raises(UsageError) as error:
        reduce_arrays([array, array], op, dtype)
    assert str(error.value) == message
    with pytest.raises(UsageError) as error:
        all_reduce(generate(Collective.ALL_REDUCE, "mesh", 2), [array, array], op, dtype)
    assert str(error.value) == message


def test_inputs_are_left_as_they_are() -> None:
    for name in names(Collective.ALL_REDUCE):
        arrays = random_arrays(DType.FLOAT16, 4)
        before = [array.copy() for array in arrays]
        for output in all_reduce(
            generate(Collective.ALL_REDUCE, name, 4), arrays, ReduceOp.AVG, DType.FLOAT16
        ):
            output[:] = 0
        assert all(same(array, copy) for array, copy in zip(arrays, before, strict=True))


def test_every_bfloat16_survives_being_widened_and_rounded() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    back = bfloat16_bits(bfloat16_values(bits))
    nan = np.isnan(bfloat16_values(bits))
    assert np.array_equal(back[~nan], bits[~nan])
    assert np.array_equal(back[nan], bits[nan] | 0x40)


def test_halfway_between_two_bfloat16_the_even_one_is_taken() -> None:
    low = np.arange(0x7F80, dtype=np.uint32)
    for sign in (0, 0x8000):
        middle = ((low | sign) << 16 | 0x8000).astype(np.uint32)
        even = low + (low & 1) | sign
        assert np.array_equal(bfloat16_bits(middle.view(np.float32)), even)
        assert np.array_equal(bfloat16_bits((middle - 1).view(np.float32)), low | sign)
        assert np.array_equal(bfloat16_bits((middle + 1).view(np.float32)), low + 1 | sign)


def test_rounding_to_bfloat16_is_torchs() -> None:
    import torch

    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 20, np.uint32)
    values = bits.view(np.float32)
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()
    numbers = ~np.isnan(values)
    assert np.array_equal(bfloat16_bits(values)[numbers], expected[numbers])


def test_every_plan_there_is_was_run_here() -> None:
    assert {collective for collective, _ in PLANS} == set(Collective)
