"""Tests of broadcast, gathers, scatters, all-to-alls and barriers."""

import pytest
import torch
from torch import distributed as dist

from slackline.errors import MismatchError, UsageError

SIZE = 3

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.float8_e5m2,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_broadcast_copies_the_roots_tensor_in_every_type(ranks, dtype):
    def rank_main(group):
        tensor = torch.tensor([group.rank(), 1, 0]).to(dtype)
        group.broadcast([tensor], _rooted(dist.BroadcastOptions(), 1)).wait()
        return tensor

    for tensor in ranks(SIZE, rank_main):
        assert tensor.to(torch.complex64).tolist() == [1, 1, 0]


def _rooted(options, root):
    options.rootRank = root
    return options


def test_all_gather_takes_parts_of_different_sizes(ranks):
    def rank_main(group):
        outputs = [torch.empty(n + 1) for n in range(SIZE)]
        dist.all_gather(outputs, torch.full((group.rank() + 1,), float(group.rank())), group=group)
        return [output.tolist() for output in outputs]

    assert ranks(SIZE, rank_main) == [[[0.0], [1.0] * 2, [2.0] * 3]] * SIZE


def test_all_gather_fills_one_tensor_by_both_of_its_names(ranks):
    def rank_main(group):
        outputs = [torch.empty(SIZE, 2), torch.empty(SIZE * 2)]
        source = torch.full((2,), float(group.rank()))
        dist.all_gather_into_tensor(outputs[0], source, group=group)
        group._allgather_base(outputs[1], source).wait()
        return [output.flatten().tolist() for output in outputs]

    assert ranks(SIZE, rank_main) == [[[0.0, 0.0, 1.0, 1.0, 2.0, 2.0]] * 2] * SIZE


def test_coalesced_gathers_are_several_at_once(ranks):
    def rank_main(group):
        me = float(group.rank())
        outputs = [torch.empty(SIZE), torch.empty(2 * SIZE)]
        inputs = [torch.tensor([me]), torch.tensor([me, -me])]
        group.allgather_into_tensor_coalesced(outputs, inputs).wait()
        lists = [[torch.empty(1), torch.empty(2)] for _ in range(SIZE)]
        group.allgather_coalesced(lists, inputs).wait()
        return [t.tolist() for t in outputs], [[t.tolist() for t in of] for of in lists]

    expected = (
        [[0.0, 1.0, 2.0], [0.0, 0.0, 1.0, -1.0, 2.0, -2.0]],
        [[[0.0], [0.0, 0.0]], [[1.0], [1.0, -1.0]], [[2.0], [2.0, -2.0]]],
    )
    assert ranks(SIZE, rank_main) == [expected] * SIZE


def test_gather_fills_the_roots_tensors(ranks):
    def rank_main(group):
        outputs = [torch.empty(1) for _ in range(SIZE)] if group.rank() == 2 else None
        dist.gather(torch.tensor([group.rank() * 1.0]), outputs, group=group, group_dst=2)
        return outputs and [output.item() for output in outputs]

    assert ranks(SIZE, rank_main) == [None, None, [0.0, 1.0, 2.0]]


def test_scatter_hands_out_the_roots_tensors(ranks):
    def rank_main(group):
        inputs = [torch.tensor([n * 10]) for n in range(SIZE)] if group.rank() == 1 else None
        output = torch.empty(1, dtype=torch.int64)
        dist.scatter(output, inputs, group=group, group_src=1)
        return output.item()

    assert ranks(SIZE, rank_main) == [0, 10, 20]


def test_all_to_all_transposes(ranks):
    def rank_main(group):
        inputs = [torch.tensor([group.rank() * 10 + n]) for n in range(SIZE)]
        outputs = [torch.empty(1, dtype=torch.int64) for _ in range(SIZE)]
        dist.all_to_all(outputs, inputs, group=group)
        even = torch.empty(SIZE, dtype=torch.int64)
        dist.all_to_all_single(even, torch.cat(inputs), group=group)
        return [output.item() for output in outputs], even.tolist()

    for rank, result in enumerate(ranks(SIZE, rank_main)):
        assert result == ([rank, 10 + rank, 20 + rank],) * 2


@pytest.mark.parametrize("width", [1, 2])
def test_all_to_all_takes_uneven_rows(ranks, width):
    def rank_main(group):
        me = group.rank()
        source = torch.full((3, width), float(me))
        sent = [0, 1, 2] if me == 0 else [1, 1, 1]
        received = [[0, 1, 1], [1, 1, 1], [2, 1, 1]][me]
        target = torch.empty(sum(received), width)
        dist.all_to_all_single(target, source, received, sent, group=group)
        return target[:, 0].tolist()

    assert ranks(SIZE, rank_main) == [[1.0, 2.0], [0.0, 1.0, 2.0], [0.0, 0.0, 1.0, 2.0]]


def test_a_barrier_is_done_when_all_have_come(ranks):
    def rank_main(group):
        dist.barrier(group=group)
        work = dist.barrier(group=group, async_op=True)
        work.wait()
        return work.is_completed()

    assert ranks(SIZE, rank_main) == [True] * SIZE


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda g: g.allgather([[torch.empty(1)]], [torch.empty(1)]),
            "the outputs of all_gather must have one tensor for each of 2 ranks, not 1",
        ),
        (
            lambda g: g.all_gather_single(torch.empty(3), torch.empty(2)),
            "the output of all_gather must have 4 elements, not 3",
        ),
        (
            lambda g: g.all_gather_single(torch.empty(4), torch.empty(2, dtype=torch.int8)),
            "an operation takes tensors of one type, not torch.int8 and torch.float32",
        ),
        (
            lambda g: g.reduce_scatter_single(torch.empty(2), torch.empty(3)),
            "the input of reduce_scatter must have 4 elements, not 3",
        ),
        (
            lambda g: g.all_to_all_single(torch.empty(3), torch.empty(4)),
            "the output of all_to_all must have rows for 2 ranks, not 3",
        ),
        (
            lambda g: g.all_to_all_single(torch.empty(4), torch.empty(4), [2, 1], []),
            "the output splits of all_to_all must be 2 numbers whose sum is 4, not [2, 1]",
        ),
        (
            lambda g: g.broadcast([torch.empty(1), torch.empty(1)]),
            "an operation takes one tensor of each rank, not 2",
        ),
        (
            lambda g: g.broadcast([torch.empty(1, device="meta")]),
            "slackline takes tensors on cpu and cuda, not on meta",
        ),
        (
            lambda g: g.send([torch.empty(1)], 1 - g.rank(), 1 << 24),
            "a tag must be in 0..16777214, not 16777216",
        ),
    ],
)
def test_a_mistake_is_named_with_its_value(ranks, call, text):
    def rank_main(group):
        with pytest.raises(UsageError) as caught:
            call(group)
        return str(caught.value)

    assert ranks(2, rank_main) == [text] * 2


def test_ranks_that_disagree_get_a_mismatch_error(ranks):
    def rank_main(group):
        with pytest.raises(MismatchError):
            dist.all_reduce(torch.zeros(group.rank() + 1), group=group)

    ranks(2, rank_main)
