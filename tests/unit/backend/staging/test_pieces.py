"""Tests of long tensors that are transferred in pieces, on an accelerator simulated by threads."""

import threading
from concurrent.futures import Future

import pytest
import torch

from slackline.backend.staging import BlockRing, gathered_pieces, pieces_of, scattered_pieces
from slackline.errors import LinkError
from slackline.testing import LoopbackFabric
from slackline.testing.thread_device import ThreadDevice
from slackline.wire import DType, ReduceOp

PIECE = 256


class Pending:
    """A transfer that ends when the test calls `end`."""

    source = None

    def __init__(self):
        self._ended = Future()

    def end(self, error=None):
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    def done(self):
        return self._ended.done()

    def wait(self, timeout=None):
        self._ended.result(timeout)

    def add_done_callback(self, fn):
        self._ended.add_done_callback(lambda ended: fn(ended.exception()))

    def open_at_end(self, word, value):
        pass


@pytest.fixture
def device():
    made = ThreadDevice()
    yield made
    made.close()


def pass_through(ring, device, tensor, post):
    landings = []
    pieces = pieces_of(tensor, tensor, PIECE)
    transfer = ring.pass_through(device, device.copies(), pieces, post, landings)
    return transfer, landings


def arrive(device, landings):
    """Wait for the copies of all results to the device."""
    for landing in landings:
        landing.launch()
        if landing.event is not None:
            landing.event.synchronize()


@pytest.mark.parametrize("count", [1, 63, 64, 65, 640, 1000])
def test_pieces_of_all_ranks_are_summed_through_two_blocks_each(count):
    fabric = LoopbackFabric(3)
    results, sizes = [None] * 3, [[] for _ in range(3)]

    class Counting(ThreadDevice):
        def __init__(self, rank):
            super().__init__()
            self.sizes = sizes[rank]

        def allocate(self, nbytes):
            self.sizes.append(nbytes)
            return super().allocate(nbytes)

    def rank_main(rank):
        device = Counting(rank)
        tensor = torch.arange(count, dtype=torch.int32) * (rank + 1)
        ring = BlockRing(piece_bytes=PIECE, blocks=2)
        nic = fabric.groups[rank]

        def post(host):
            address = host.data_ptr()
            return nic.all_reduce(address, address, host.numel(), DType.INT32, ReduceOp.SUM)

        for _ in range(2):
            transfer, landings = pass_through(ring, device, tensor, post)
            transfer.wait()
            arrive(device, landings)
        device.close()
        results[rank] = tensor

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank, result in enumerate(results):
        assert torch.equal(result, torch.arange(count, dtype=torch.int32) * 6 * 3)
        assert sizes[rank] in ([PIECE], [PIECE] * 2)


def test_copies_and_transfers_of_several_pieces_are_under_way_at_once(device):
    tensor = torch.arange(4 * PIECE, dtype=torch.int32).to(torch.uint8)
    posted = []

    def post(host):
        posted.append(Pending())
        return posted[-1]

    transfer, _ = pass_through(BlockRing(piece_bytes=PIECE, blocks=4), device, tensor, post)
    assert len(posted) == 4
    for each in reversed(posted):
        assert not transfer.done()
        each.end()
    assert transfer.done()


def test_a_block_takes_no_piece_before_its_last_one_is_back_on_the_device(device):
    """Give the ring of host memory one block: the second piece of the tensor waits until the first
    piece is back on the device."""
    tensor = torch.full((2 * PIECE,), 3, dtype=torch.uint8)
    tensor[PIECE:] = 5
    hold = threading.Event()
    _, _, landing = device.beside(device.current)
    landing.launch(hold.wait)
    posted, first = [], threading.Event()

    def post(host):
        posted.append(host.clone())
        first.set()
        host.add_(1)
        done = Pending()
        done.end()
        return done

    ring = BlockRing(piece_bytes=PIECE, blocks=1)
    thread = threading.Thread(target=pass_through, args=(ring, device, tensor, post))
    thread.start()
    assert first.wait(60)
    assert len(posted) == 1
    assert tensor[0] == 3
    hold.set()
    thread.join()
    assert [int(each[0]) for each in posted] == [3, 5]
    device.close()
    assert torch.equal(tensor, torch.tensor([4] * PIECE + [6] * PIECE, dtype=torch.uint8))


def test_a_piece_that_fails_is_not_copied_back_and_its_error_is_that_of_the_whole(device):
    tensor = torch.zeros(2 * PIECE, dtype=torch.uint8)
    posted = []

    def post(host):
        host.fill_(7)
        posted.append(Pending())
        return posted[-1]

    ring = BlockRing(piece_bytes=PIECE, blocks=2)
    transfer, landings = pass_through(ring, device, tensor, post)
    posted[0].end(LinkError("the link to rank 1 is lost"))
    posted[1].end()
    with pytest.raises(LinkError, match=r"^the link to rank 1 is lost$"):
        transfer.wait()
    arrive(device, landings)
    assert tensor[:PIECE].eq(0).all()
    assert tensor[PIECE:].eq(7).all()


def test_after_a_post_that_fails_the_ring_goes_on_with_other_blocks(device):
    tensor = torch.zeros(3 * PIECE, dtype=torch.uint8)
    blocks, refused = [], [False, True]
    allocate = device.allocate

    def counting(nbytes):
        blocks.append(nbytes)
        return allocate(nbytes)

    device.allocate = counting

    def post(host):
        if refused and refused.pop(0):
            raise LinkError("the group is closed")
        done = Pending()
        done.end()
        return done

    ring = BlockRing(piece_bytes=PIECE, blocks=2)
    with pytest.raises(LinkError, match=r"^the group is closed$"):
        pass_through(ring, device, tensor, post)
    first = len(blocks)
    pass_through(ring, device, tensor, post)[0].wait()
    assert first == 2
    assert len(blocks) in (3, 4)


def test_pieces_cover_a_tensor_once_and_in_order():
    source, target = torch.arange(10), torch.empty(10, dtype=torch.int64)
    for piece in pieces_of(source, target, 32):
        piece.targets[0].copy_(piece.sources[0])
    assert torch.equal(source, target)
    assert [len(piece.sources[0]) for piece in pieces_of(source, target, 32)] == [4, 4, 2]


def test_a_piece_of_a_gathering_has_a_row_of_host_memory_for_each_rank():
    targets = list(torch.empty(3, 10, dtype=torch.int64))
    pieces = gathered_pieces(torch.arange(10), targets, 1, 96)
    assert [len(piece.sources[0]) for piece in pieces] == [4, 4, 2]
    assert {(piece.rows, piece.source_row, piece.target_row) for piece in pieces} == {(3, 1, 0)}
    pieces = scattered_pieces(targets, torch.empty(10, dtype=torch.int64), 2, 96)
    assert [[len(row) for row in piece.sources] for piece in pieces] == [[4] * 3, [4] * 3, [2] * 3]
    assert {(piece.rows, piece.source_row, piece.target_row) for piece in pieces} == {(3, 0, 2)}
