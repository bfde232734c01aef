"""Tests of CUDA tensors on a device; test_staged tests the same order of streams with threads."""

import threading

import pytest
import torch
from torch import distributed as dist

from slackline.errors import UsageError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.device_count(), reason="no CUDA device"),
]


@pytest.fixture
def ranks(ranks):
    """Run each rank on a stream of its own: one rank's copy would otherwise queue behind another's
    gate."""

    def run(size, function):
        def on_a_stream(group):
            with torch.cuda.stream(torch.cuda.Stream()):
                return function(group)

        return ranks(size, on_a_stream)

    return run


def on_host(tensor):
    """Return a device tensor's elements, copied through pinned memory.

    A copy to other memory would block all ranks of this process in the driver while the stream
    waits at a gate.
    """
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream().synchronize()
    return host


def test_every_family_of_operations_takes_cuda_tensors(ranks):
    def rank_main(group):
        me = group.rank()
        tensor = torch.full((1 << 20,), float(me + 1), device="cuda")
        tensor *= 2
        dist.all_reduce(tensor, group=group)
        tensor /= 2
        host = torch.full((3,), float(me))
        dist.broadcast(host, group_src=1, group=group)
        gathered = torch.empty(2, 4, device="cuda")
        dist.all_gather_into_tensor(
            gathered, torch.full((4,), me + 0.5, device="cuda"), group=group
        )
        part = torch.empty(2, device="cuda")
        dist.reduce_scatter_tensor(part, torch.arange(4.0, device="cuda"), group=group)
        works = [
            group.send([gathered[me]], 1 - me),
            group.recv([part2 := torch.empty(4, device="cuda")], 1 - me),
        ]
        for work in works:
            work.wait()
        return (
            on_host(tensor).unique().tolist(),
            host.tolist(),
            on_host(part).tolist(),
            on_host(part2).tolist(),
        )

    for rank, result in enumerate(ranks(2, rank_main)):
        assert result == ([3.0], [1.0] * 3, [[0.0, 2.0], [4.0, 6.0]][rank], [1.5 - rank] * 4)


def test_a_future_of_cuda_tensors_orders_the_streams_of_its_readers(ranks):
    def rank_main(group):
        tensor = torch.full((1 << 22,), float(group.rank()), device="cuda").view(2048, 2048).t()
        work = dist.all_reduce(tensor, group=group, async_op=True)
        (result,) = work.get_future().wait()
        return on_host(result).sum().item()

    assert ranks(2, rank_main) == [float(1 << 22)] * 2


@pytest.mark.parametrize("count", [(1 << 20) + 1, (10 << 20) + 3])
def test_a_tensor_longer_than_a_piece_is_summed_in_pieces_with_the_bits_of_a_short_ones(
    ranks, count
):
    def rank_main(group):
        tensor = torch.arange(count, device="cuda") % 1021 * (group.rank() + 1)
        doubled = tensor.to(torch.float32)
        dist.all_reduce(tensor, group=group)
        factor = dist._make_nccl_premul_sum(2.0)
        dist.all_reduce(doubled, op=factor, group=group)
        return on_host(tensor), on_host(doubled)

    for whole, doubled in ranks(2, rank_main):
        expected = torch.arange(count) % 1021 * 3
        assert torch.equal(whole, expected)
        assert torch.equal(doubled, 2 * expected.to(torch.float32))


def test_a_wait_for_the_network_holds_the_stream_and_not_the_host(ranks):
    """Rank 1 calls the operation only when the host of rank 0 is past its wait."""
    both, past = threading.Barrier(2), threading.Event()

    def rank_main(group):
        tensor = torch.full((3,), group.rank() + 1.0, device="cuda")
        doubled = tensor * 2  # The first use of a kernel waits for all streams.
        torch.cuda.synchronize()
        both.wait(60)
        if group.rank() == 1:
            assert past.wait(60)
        work = dist.all_reduce(tensor, group=group, async_op=True)
        work.wait()
        torch.mul(tensor, 2, out=doubled)
        past.set()
        found = on_host(doubled).tolist()
        group.settle()
        return found, work.is_completed()

    assert ranks(2, rank_main) == [([6.0] * 3, True)] * 2


def test_an_operation_in_a_captured_graph_is_refused(ranks):
    def rank_main(group):
        tensor = torch.ones(3, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tensor.mul_(2)
            with pytest.raises(UsageError, match=r"^slackline's operations cannot be captured"):
                dist.all_reduce(tensor, group=group)
        dist.all_reduce(tensor, group=group)
        return on_host(tensor).tolist()

    assert ranks(1, rank_main) == [[1.0] * 3]
