"""Tests of long tensors that are copied in pieces. Other memory stands in for device memory, and
threads make the copies."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch

from slackline.backend._pieces import BlockRing, pieces_of
from slackline.errors import LinkError
from slackline.wire import DType, ReduceOp

PIECE = 256


class Queued:
    """A copy in a stream, which a thread performs in order."""

    def __init__(self, future: Future):
        self._future = future

    def synchronize(self):
        self._future.result()


class Streams:
    """Streams for copies to the host and to the device, with one thread for each direction."""

    def __init__(self):
        self._to_host, self._to_device = (ThreadPoolExecutor(1) for _ in range(2))

    def to_host(self, host, device):
        return Queued(self._to_host.submit(host.copy_, device))

    def to_device(self, device, host):
        return Queued(self._to_device.submit(device.copy_, host))

    def arrived(self):
        """Wait for all copies to the device queued so far."""
        self._to_device.submit(int).result()

    def close(self):
        """Wait for all copies and end the threads."""
        self._to_host.shutdown()
        self._to_device.shutdown()


class Pending:
    """A transfer that ends when the test calls end()."""

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


@pytest.fixture
def streams():
    made = Streams()
    yield made
    made.close()


def memory(size):
    return torch.empty(size, dtype=torch.uint8)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 640, 1000])
def test_pieces_of_all_ranks_are_summed_through_two_blocks_each(ranks, count):
    def rank_main(group):
        device = torch.arange(count, dtype=torch.int32) * (group.rank() + 1)
        sizes = []

        def allocate(size):
            sizes.append(size)
            return memory(size)

        def post(host):
            address = host.data_ptr()
            return group._nic.all_reduce(address, address, host.numel(), DType.INT32, ReduceOp.SUM)

        streams = Streams()
        ring = BlockRing(allocate, piece_bytes=PIECE, blocks=2)
        for _ in range(2):
            pieces = pieces_of(device, device, PIECE)
            ring.pass_through(pieces, streams, post).wait()
            streams.arrived()
        streams.close()
        assert sizes == [PIECE] * min(2, len(pieces))
        return device

    for result in ranks(3, rank_main):
        assert torch.equal(result, torch.arange(count, dtype=torch.int32) * 6 * 3)


def test_copies_and_transfers_of_several_pieces_are_under_way_at_once(streams):
    device = torch.arange(4 * PIECE, dtype=torch.uint8)
    posted = []

    def post(host):
        posted.append(Pending())
        return posted[-1]

    transfer = BlockRing(memory, piece_bytes=PIECE, blocks=4).pass_through(
        pieces_of(device, device, PIECE), streams, post
    )
    assert len(posted) == 4
    for each in reversed(posted):
        assert not transfer.done()
        each.end()
    assert transfer.done()


def test_a_block_takes_no_piece_before_its_last_one_is_back_on_the_device():
    """Check with one block that the second piece is copied out only after the first piece has been
    copied back."""
    device = torch.arange(2 * PIECE, dtype=torch.uint8)
    asked, back = threading.Event(), threading.Event()
    happened = []

    class Held:
        def synchronize(self):
            asked.set()
            back.wait()
            happened.append("back")

    class Ended:
        def synchronize(self):
            pass

    class Copies:
        def to_host(self, host, device):
            happened.append("out")
            host.copy_(device)
            return Ended()

        def to_device(self, device, host):
            happened.append("to device")
            return Held() if "back" not in happened else Ended()

    def post(host):
        done = Pending()
        done.end()
        return done

    ring = BlockRing(memory, piece_bytes=PIECE, blocks=1)
    pieces = pieces_of(device, device, PIECE)
    thread = threading.Thread(target=ring.pass_through, args=(pieces, Copies(), post))
    thread.start()
    assert asked.wait(60)
    assert happened == ["out", "to device"]
    back.set()
    thread.join(20)
    assert happened == ["out", "to device", "back", "out", "to device"]


def test_a_piece_that_fails_is_not_copied_back_and_its_error_is_that_of_the_whole(streams):
    device = torch.zeros(2 * PIECE, dtype=torch.uint8)
    posted = []

    def post(host):
        host.fill_(7)
        posted.append(Pending())
        return posted[-1]

    transfer = BlockRing(memory, piece_bytes=PIECE, blocks=2).pass_through(
        pieces_of(device, device, PIECE), streams, post
    )
    posted[0].end(LinkError("the link to rank 1 is lost"))
    posted[1].end()
    with pytest.raises(LinkError, match=r"^the link to rank 1 is lost$"):
        transfer.wait()
    streams.close()
    assert device[:PIECE].eq(0).all()
    assert device[PIECE:].eq(7).all()


def test_after_a_post_that_fails_the_ring_goes_on_with_other_blocks(streams):
    device = torch.zeros(3 * PIECE, dtype=torch.uint8)
    blocks, refused = [], [False, True]

    def allocate(size):
        blocks.append(memory(size))
        return blocks[-1]

    def post(host):
        if refused and refused.pop(0):
            raise LinkError("the group is closed")
        done = Pending()
        done.end()
        return done

    ring = BlockRing(allocate, piece_bytes=PIECE, blocks=2)
    pieces = pieces_of(device, device, PIECE)
    with pytest.raises(LinkError, match=r"^the group is closed$"):
        ring.pass_through(pieces, streams, post)
    first = len(blocks)
    ring.pass_through(pieces, streams, post).wait()
    assert first == 2
    assert len(blocks) in (3, 4)


def test_pieces_cover_a_tensor_once_and_in_order():
    source, target = torch.arange(10), torch.empty(10, dtype=torch.int64)
    for piece in pieces_of(source, target, 32):
        piece.target.copy_(piece.source)
    assert torch.equal(source, target)
    assert [len(piece.source) for piece in pieces_of(source, target, 32)] == [4, 4, 2]
