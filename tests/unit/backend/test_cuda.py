"""Tests of CUDA tensors: the order of work on the device's thread (no device needed), and whole
operations (marked cuda)."""

import threading

import pytest
import torch
from torch import distributed as dist

from slackline.backend._cuda import CudaLane, Deferred
from slackline.errors import UsageError

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


class Finished:
    """A transfer that has finished."""

    source = 4

    def done(self):
        return True

    def wait(self, timeout=None):
        pass

    def add_done_callback(self, fn):
        fn(None)


class Event:
    """A stand-in for a CUDA event."""

    def __init__(self):
        self.happened = threading.Event()

    def synchronize(self):
        self.happened.wait()


def test_the_lane_posts_in_the_order_of_the_calls_each_after_its_event():
    lane = CudaLane()
    order = []

    def posting(name):
        order.append(name)
        return Finished()

    event = Event()
    first = lane.post(event, lambda: posting("first"))
    second = lane.post(None, lambda: posting("second"))
    assert not first.done()
    assert not second.done()
    assert order == []
    event.happened.set()
    second.wait()
    assert order == ["first", "second"]
    assert first.done()
    assert first.source == 4
    lane.close()


def test_the_lane_ends_after_what_was_queued():
    lane = CudaLane()
    transfers = [lane.post(None, Finished) for _ in range(5)]
    lane.close()
    assert all(transfer.done() for transfer in transfers)


def test_an_error_in_a_late_post_is_the_transfers_error():
    deferred = Deferred()
    seen = []
    deferred.add_done_callback(seen.append)

    def fail():
        raise UsageError("no such rank")

    deferred.post(fail)
    deferred.add_done_callback(seen.append)
    with pytest.raises(UsageError, match=r"^no such rank$"):
        deferred.wait()
    assert deferred.done()
    assert [str(error) for error in seen] == ["no such rank"] * 2


@pytest.mark.cuda
@needs_cuda
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
        return tensor.unique().tolist(), host.tolist(), part.tolist(), part2.tolist()

    for rank, result in enumerate(ranks(2, rank_main)):
        assert result == ([3.0], [1.0] * 3, [[0.0, 2.0], [4.0, 6.0]][rank], [1.5 - rank] * 4)


@pytest.mark.cuda
@needs_cuda
def test_a_future_of_cuda_tensors_orders_the_streams_of_its_readers(ranks):
    def rank_main(group):
        tensor = torch.full((1 << 22,), float(group.rank()), device="cuda").view(2048, 2048).t()
        work = dist.all_reduce(tensor, group=group, async_op=True)
        (result,) = work.get_future().wait()
        return result.sum().item()

    assert ranks(2, rank_main) == [float(1 << 22)] * 2


@pytest.mark.cuda
@needs_cuda
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
        return tensor.cpu(), doubled.cpu()

    for whole, doubled in ranks(2, rank_main):
        expected = torch.arange(count) % 1021 * 3
        assert torch.equal(whole, expected)
        assert torch.equal(doubled, 2 * expected.to(torch.float32))
