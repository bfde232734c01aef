"""The host's side of a ring NIC: what waits, what is given up."""

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest

from slackline.circuit import RingOperation, RingOptions, open_ring_device
from slackline.nic._device import Post, RingHost
from slackline.wire import DType

COUNT, MOST = 32, 2


class Rank:
    """A host with a twin that has room for two operations, and its tensors by tag."""

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
            tag, dtype, total, frame_bytes, _, at = each
            nic.post(
                RingOperation(
                    tag=tag,
                    dtype=DType(dtype),
                    total=total,
                    frame_bytes=frame_bytes,
                    source=at,
                    target=at,
                )
            )

        self.host = RingHost(open_nic, post, MOST)

    def post(self, tag: int, priority: int = 0) -> Post:
        self.tensors[tag] = np.full(COUNT, tag, np.float32)
        at = self.tensors[tag].ctypes.data
        return tag, DType.FLOAT32, 4 * COUNT, 64, priority, at


@pytest.fixture
def ranks() -> Iterator[tuple[Rank, Rank]]:
    pair = Rank(0), Rank(1)
    yield pair
    for rank in pair:
        rank.host.close()


def test_what_there_is_no_room_for_waits_and_the_most_urgent_goes_first(ranks) -> None:
    first, second = ranks
    sent, done = first.host.take([first.post(tag, priority=-tag) for tag in (1, 2, 3, 4)], [], [])
    assert (first.begun, done) == ([4, 3], [])
    while len(first.begun) < 4 or done != [2, 1]:
        told = second.host.take(
            [second.post(tag) for tag in first.begun if tag not in second.tensors],
            [(0, frame) for frame in sent],
            [],
        )
        sent, done = first.host.take([], [(1, frame) for frame in told[0]], [])
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
            source=posts[2][5],
            target=posts[2][5],
        )
    )
    assert second.host.take([], [(0, frame) for frame in third.frames()], []) == ([], [])
    out, done = second.host.take([], [(0, frame) for frame in sent[0] + sent[1]], [])
    assert done == [1, 2, 3]
    assert len(out) == 6
    assert (second.tensors[3] == 6).all()


def test_a_nic_whose_operations_were_all_given_up_is_replaced(ranks) -> None:
    first, _ = ranks
    first.host.take([first.post(tag) for tag in (1, 2, 3)], [], [])
    assert first.host.take([], [], [3]) == ([], [])  # it has not begun
    assert first.host.take([], [], [1]) == ([], [])  # 2 is still open
    assert (first.opened, first.begun) == (1, [1, 2])
    first.host.take([first.post(4)], [], [2])
    assert (first.opened, first.begun) == (2, [1, 2, 4])


def test_the_tag_is_read_where_frames_have_it() -> None:
    from slackline.nic._device import _TAG
    from slackline.wire import FrameKind, Header, encode

    frame = encode(Header(kind=FrameKind.DATA, tag=0x0123456789ABCDEF))
    assert frame[_TAG] == bytes(ctypes.c_uint64(0x0123456789ABCDEF))
