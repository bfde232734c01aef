"""Tests of all_reduce, reduce and reduce_scatter in every type and reduction that they accept."""

import pytest
import torch
from torch import distributed as dist

from slackline.errors import UsageError

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
SIZE = 3

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")

OPS = {
    "SUM": lambda parts: sum(parts[1:], start=parts[0]),
    "AVG": lambda parts: sum(parts[1:], start=parts[0]) / len(parts),
    "PRODUCT": lambda parts: parts[0] * parts[1] * parts[2],
    "MIN": lambda parts: torch.stack(parts).amin(0),
    "MAX": lambda parts: torch.stack(parts).amax(0),
}
BITWISE = {
    "BAND": lambda parts: parts[0] & parts[1] & parts[2],
    "BOR": lambda parts: parts[0] | parts[1] | parts[2],
    "BXOR": lambda parts: parts[0] ^ parts[1] ^ parts[2],
}


def part(rank, dtype, count=7):
    """Return small numbers, so that every type can represent every result; sums are divisible by
    three."""
    values = [index % 3 + rank * 3 for index in range(count)]
    return torch.tensor(values, dtype=torch.int64).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS + SIGNED + UNSIGNED, ids=str)
@pytest.mark.parametrize("name", OPS)
def test_all_reduce_gives_every_rank_the_reduction_of_all(ranks, dtype, name):
    def rank_main(group):
        tensor = part(group.rank(), dtype)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, name), group=group)
        return tensor

    wide = torch.float64
    expected = OPS[name]([part(rank, wide) for rank in range(SIZE)]).trunc()
    for tensor in ranks(SIZE, rank_main):
        assert torch.equal(tensor.to(wide), expected)


@pytest.mark.parametrize("dtype", [*SIGNED, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize("name", BITWISE)
def test_bitwise_reductions_take_integers_and_bools(ranks, dtype, name):
    def rank_main(group):
        tensor = part(group.rank(), dtype)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, name), group=group)
        return tensor

    expected = BITWISE[name]([part(rank, dtype) for rank in range(SIZE)])
    for tensor in ranks(SIZE, rank_main):
        assert torch.equal(tensor, expected)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize("direct", [False, True])
def test_complex_numbers_add_as_pairs(ranks, dtype, direct):
    def rank_main(group):
        tensor = torch.tensor([1 + 2j, 3 - 1j], dtype=dtype) * (group.rank() + 1)
        if direct:
            group.allreduce([tensor]).wait()
        else:
            dist.all_reduce(tensor, group=group)
        return tensor

    for tensor in ranks(SIZE, rank_main):
        assert tensor.tolist() == [6 + 12j, 18 - 6j]


def test_a_premultiplied_sum_multiplies_first(ranks):
    def rank_main(group):
        one = torch.full((4,), group.rank() + 1.0)
        dist.all_reduce(one, dist._make_nccl_premul_sum(0.5), group=group)
        two = torch.full((2, 2), group.rank() + 1.0).t()
        dist.all_reduce(two, dist._make_nccl_premul_sum(torch.tensor([2.0])), group=group)
        part = torch.empty(1)
        dist.reduce_scatter_tensor(
            part, torch.arange(3.0), dist._make_nccl_premul_sum(2.0), group=group
        )
        return one.tolist(), two.flatten().tolist(), part.item()

    for rank, result in enumerate(ranks(SIZE, rank_main)):
        assert result == ([3.0] * 4, [12.0] * 4, 6.0 * rank)


def test_reduce_changes_the_root_alone(ranks):
    def rank_main(group):
        tensor = part(group.rank(), torch.float32)
        dist.reduce(tensor, group_dst=1, group=group)
        return tensor

    results = ranks(SIZE, rank_main)
    for rank in (0, 2):
        assert torch.equal(results[rank], part(rank, torch.float32))
    assert torch.equal(results[1], OPS["SUM"]([part(r, torch.float32) for r in range(SIZE)]))


def test_reduce_scatter_gives_each_rank_its_part_even_of_its_own_size(ranks):
    def rank_main(group):
        inputs = [torch.full((index + 1,), float(group.rank() + index)) for index in range(SIZE)]
        output = torch.empty(group.rank() + 1)
        dist.reduce_scatter(output, inputs, group=group)
        return output.tolist()

    assert ranks(SIZE, rank_main) == [[3.0], [6.0] * 2, [9.0] * 3]


def test_reduce_scatter_cuts_one_tensor(ranks):
    def rank_main(group):
        output = torch.empty(2)
        dist.reduce_scatter_tensor(output, torch.arange(6.0), dist.ReduceOp.AVG, group=group)
        return output.tolist()

    assert ranks(SIZE, rank_main) == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


def test_coalesced_reductions_are_several_at_once(ranks):
    def rank_main(group):
        tensors = [torch.full((n,), float(group.rank())) for n in (1, 2, 3)]
        with dist._coalescing_manager(group):
            for tensor in tensors:
                dist.all_reduce(tensor, group=group)
        outputs = [torch.empty(1), torch.empty(2)]
        with dist._coalescing_manager(group, async_ops=True) as works:
            for output in outputs:
                source = torch.arange(float(output.numel() * SIZE))
                dist.reduce_scatter_tensor(output, source, group=group)
        works.wait()
        return [t.tolist() for t in tensors + outputs]

    for rank, result in enumerate(ranks(SIZE, rank_main)):
        assert result[:3] == [[3.0], [3.0] * 2, [3.0] * 3]
        assert result[3:] == [[3.0 * rank], [6.0 * rank, 6.0 * rank + 3.0]]


def test_the_short_forms_take_reduction_and_timeout(ranks):
    def rank_main(group):
        tensor = torch.tensor([group.rank() + 1.0])
        group.allreduce(tensor, dist.ReduceOp.MAX).wait()
        other = torch.tensor([group.rank() + 1.0])
        group.reduce(other, 0, dist.ReduceOp.SUM).wait()
        return tensor.item(), other.item()

    assert ranks(SIZE, rank_main) == [(3.0, 6.0), (3.0, 2.0), (3.0, 3.0)]


@pytest.mark.parametrize(
    ("dtype", "op", "text"),
    [
        (torch.float32, "BAND", "slackline cannot reduce torch.float32 with BAND"),
        (torch.bool, "AVG", "slackline cannot reduce torch.bool with AVG"),
        (torch.complex64, "MAX", "slackline cannot reduce torch.complex64 with MAX"),
        (torch.float8_e4m3fn, "SUM", "slackline cannot reduce torch.float8_e4m3fn with SUM"),
    ],
)
def test_what_cannot_be_reduced_is_named(ranks, dtype, op, text):
    def rank_main(group):
        options = dist.AllreduceOptions()
        options.reduceOp = getattr(dist.ReduceOp, op)
        with pytest.raises(UsageError) as caught:
            group.allreduce([torch.zeros(2).to(dtype)], options)
        return str(caught.value)

    assert ranks(1, rank_main) == [text]


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    ("layout", "operation"), [("sparse_coo", dist.broadcast), ("sparse_csr", dist.all_reduce)]
)
def test_sparse_tensors_are_refused_where_they_are_not_added(ranks, layout, operation):
    def rank_main(group):
        tensor = torch.eye(3).to_sparse(layout=getattr(torch, layout))
        how = {"group_src": 0} if operation is dist.broadcast else {}
        with pytest.raises(UsageError) as caught:
            operation(tensor, group=group, **how)
        return str(caught.value)

    assert ranks(1, rank_main) == [
        f"slackline takes dense tensors, not one of layout torch.{layout}"
    ]


def test_an_inference_tensor_with_gaps_gets_its_result_from_an_asynchronous_all_reduce(ranks):
    def rank_main(group):
        with torch.inference_mode():
            tensor = torch.full((3, 2), group.rank() + 1.0)
            dist.all_reduce(tensor[:, 0], group=group, async_op=True).wait()
            return tensor.tolist()

    assert ranks(2, rank_main) == [[[3.0, 1.0]] * 3, [[3.0, 2.0]] * 3]
