"""Tests of the host's side of a ring NIC, with a Python twin in place of the circuit: waiting
operations, and operations that are withdrawn."""

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest

from slackline.circuit import RingOperation, RingOptions, open_ring_device
from slackline.nic.offload._circuit_nic import post_operation
from slackline.nic.offload._device import Post
from slackline.nic.offload._ring_host import RingHost
from slackline.wire import DType, FrameKind, Header, decode, encode

COUNT, MOST = 32, 2


class Rank:
    """A host whose ring NIC is a Python twin with room for two operations, and its tensors by
    tag."""

    def __init__(self, rank: int) -> None:
        options = RingOptions(operations=MOST)
        self.opened = 0
        self.begun: list[int] = []
        self.tensors: dict[int, np.ndarray] = {}

        def open_nic():
            self.opened += 1
            return open_ring_device("twin", options, rank=rank, ranks=2, job=0, epoch=9, plan_id=4)

        def post(nic, each: Post) -> None:
            self.begun.append(each[0])
            post_operation(nic, each)

        self.host = RingHost(open_nic, post, MOST)

    def post(self, tag: int, priority: int = 0) -> Post:
        self.tensors[tag] = np.full(COUNT, tag, np.float32)
        at = self.tensors[tag].ctypes.data
        return tag, 0, 0, DType.FLOAT32, 4 * COUNT, 64, priority, at


@pytest.fixture
def ranks() -> Iterator[tuple[Rank, Rank]]:
    pair = Rank(0), Rank(1)
    yield pair
    for rank in pair:
        rank.host.close()


def test_what_there_is_no_room_for_waits_and_the_most_urgent_goes_first(ranks) -> None:
    first, second = ranks
    posts = [first.post(tag, priority=-tag) for tag in (1, 2, 3, 4)]
    sent, done, _ = first.host.take(posts, [], [])
    assert (first.begun, done) == ([4, 3], [])
    while len(first.begun) < 4 or done != [(2, 0), (1, 0)]:
        told = second.host.take(
            [second.post(tag) for tag in first.begun if tag not in second.tensors],
            [(0, frame) for frame in sent],
            [],
        )
        sent, done, _ = first.host.take([], [(1, frame) for frame in told[0]], [])
    assert second.begun == [4, 3, 2, 1]
    assert all((first.tensors[tag] == 2 * tag).all() for tag in (1, 2, 3, 4))


def test_frames_of_what_waits_are_kept_until_it_begins(ranks) -> None:
    first, second = ranks
    posts = [first.post(tag) for tag in (1, 2, 3)]
    sent = [first.host.take([post], [], [])[0] for post in posts[:2]]
    second.host.take([second.post(tag) for tag in (1, 2, 3)], [], [])
    assert second.begun == [1, 2]
    third = open_ring_device("twin", RingOptions(), rank=0, ranks=2, job=0, epoch=9, plan_id=4)
    third.post(
        RingOperation(
            tag=3,
            dtype=DType.FLOAT32,
            total=4 * COUNT,
            frame_bytes=64,
            source=posts[2][-1],
            target=posts[2][-1],
        )
    )
    assert second.host.take([], [(0, frame) for frame in third.frames()], []) == ([], [], [])
    out, done, _ = second.host.take([], [(0, frame) for frame in sent[0] + sent[1]], [])
    assert done == [(1, 0), (2, 0), (3, 0)]
    assert len(out) == 6
    assert (second.tensors[3] == 6).all()


def test_a_nic_that_cannot_forget_is_replaced_and_let_go_of_when_the_rest_is_done(ranks) -> None:
    first, second = ranks
    sent, _, _ = first.host.take([first.post(tag) for tag in (1, 2, 3)], [], [])
    assert first.host.take([], [], [(3, 0)]) == ([], [], [(3, 0)])  # operation 3 has not begun
    assert first.host.take([], [], [(2, 0)]) == ([], [], [])  # operation 1 is still open
    assert (first.opened, first.begun) == (1, [1, 2])
    # Withdrawn operations occupy no slot, and an operation that begins now uses a fresh NIC.
    more, _, _ = first.host.take([first.post(4)], [], [])
    assert (first.opened, first.begun) == (2, [1, 2, 4])
    frames = [(0, frame) for frame in sent[:2] + more]
    told, _, _ = second.host.take([second.post(1), second.post(4)], frames, [])
    done = first.host.take([], [(1, frame) for frame in told], [])
    assert done == ([], [(1, 0), (4, 0)], [(2, 0)])
    assert (first.tensors[1] == 2).all()
    assert (first.tensors[4] == 8).all()
    # The operation was already finished when its rank withdrew it.
    assert first.host.take([], [], [(1, 0)]) == ([], [], [(1, 0)])
    assert first.host.take([], [], []) == ([], [], [])
    assert first.opened == 2


def test_nothing_stands_still_for_what_was_given_up(ranks) -> None:
    """Check repeated withdrawals, because a rank may continue after a timeout."""
    first, _ = ranks
    for tag in range(0, 20, 2):
        assert len(first.host.take([first.post(tag), first.post(tag + 1)], [], [])[0]) == 4
        answer = first.host.take([], [], [(tag, 0), (tag + 1, 0)])
        assert answer == ([], [], [(tag, 0), (tag + 1, 0)])
    assert first.opened == 10


class Round:
    """Hosts around a rotating ring, each with room for `rooms` operations, and the frames between
    them, which arrive in an order drawn from `seed`."""

    TAGS, COUNT = 12, 64

    def __init__(self, rooms: list[int], seed: int, *, shared: bool) -> None:
        """Create the hosts. With `shared`, all operations use one common pool of slots, regardless
        of the rank at which they begin."""
        self.size, self.random, self.shared = len(rooms), np.random.default_rng(seed), shared
        self.done = [0] * self.size
        self.tensors = [
            {tag: np.full(self.COUNT, rank + tag, np.float32) for tag in range(self.TAGS)}
            for rank in range(self.size)
        ]
        self.hosts = [self._host(rank, room) for rank, room in enumerate(rooms)]
        self.told = [set[tuple[int, int]]() for _ in rooms]
        self.under_way: list[tuple[int, bytes]] = []
        """Pairs of the receiving rank and a frame in flight to it."""

    def _host(self, rank: int, room: int) -> RingHost:
        options = RingOptions(operations=room)

        def open_nic():
            place = {"rank": rank, "ranks": self.size}
            return open_ring_device("twin", options, **place, job=0, epoch=9, plan_id=3)

        def post(nic, each: Post) -> None:
            tag, chunk, _, *rest = each
            post_operation(nic, (tag, chunk, (chunk + 1) % self.size, *rest))

        return RingHost(open_nic, post, room, 1 if self.shared else self.size)

    def _post(self, rank: int, tag: int, chunk: int) -> Post:
        self.told[rank].add((tag, chunk))
        part = self.COUNT // self.size * 4
        at = self.tensors[rank][tag].ctypes.data + chunk * part
        start = 0 if self.shared else (chunk + 1) % self.size
        return tag, chunk, start, DType.FLOAT32, part, 64, tag % 3, at

    def _take(self, rank: int, posts: list[Post], frames: list[bytes]) -> None:
        sent, done, _ = self.hosts[rank].take(posts, [(0, frame) for frame in frames], [])
        self.under_way += [((rank + 1) % self.size, frame) for frame in sent]
        self.done[rank] += len(done)

    def run(self) -> bool:
        """Exchange frames until none is in flight. Return whether all sums are complete."""
        for rank in range(self.size):
            tags = self.random.permutation(self.TAGS)
            self._take(
                rank, [self._post(rank, int(tag), (rank - 1) % self.size) for tag in tags], []
            )
        while self.under_way:
            rank, frame = self.under_way.pop(self.random.integers(len(self.under_way)))
            header = decode(frame)
            new = (header.tag, header.chunk) not in self.told[rank]
            posts = [self._post(rank, header.tag, header.chunk)] if new else []
            self._take(rank, posts, [frame])
        for host in self.hosts:
            host.close()
        return self.done == [self.TAGS * self.size] * self.size


@pytest.mark.parametrize("rooms", [[2, 2], [4, 4, 4, 4], [4, 256, 4, 256], [256, 4, 8, 4]])
def test_no_order_of_frames_makes_ranks_of_a_rotating_ring_wait_for_each_other(rooms) -> None:
    for seed in range(5):
        ring = Round(rooms, seed, shared=False)
        assert ring.run()
        for tag in range(ring.TAGS):
            for mine in ring.tensors:
                assert (mine[tag] == sum(range(ring.size)) + ring.size * tag).all()


def test_with_a_common_room_they_would_wait_for_ever() -> None:
    assert not any(Round([4, 4, 4, 4], seed, shared=True).run() for seed in range(5))
    assert not any(Round([256, 4, 256, 4], seed, shared=True).run() for seed in range(5))


def test_tag_and_chunk_are_read_where_frames_have_them() -> None:
    from slackline.nic.offload._ring_host import _CHUNK, _TAG

    frame = encode(Header(kind=FrameKind.DATA, tag=0x0123456789ABCDEF, chunk=0xFEDC))
    assert frame[_TAG] == bytes(ctypes.c_uint64(0x0123456789ABCDEF))
    assert frame[_CHUNK] == bytes(ctypes.c_uint16(0xFEDC))
