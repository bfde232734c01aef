"""Tests of completion queues, over the engine and over the loopback fabric."""

import ctypes
from datetime import timedelta

from slackline.errors import PeerError
from slackline.nic import Group
from slackline.testing import LoopbackFabric, run_ranks
from slackline.wire import DType

SHORT, LONG = timedelta(milliseconds=1), timedelta(seconds=20)


def buffers(count: int) -> list[ctypes.Array[ctypes.c_char]]:
    return [ctypes.create_string_buffer(8) for _ in range(count)]


def post(group: Group, memory: ctypes.Array[ctypes.c_char], peer: int, tag: int) -> None:
    group.send(ctypes.addressof(memory), 8, DType.UINT8, peer, tag).wait()


def test_each_receive_comes_out_of_the_queue_once_with_its_token() -> None:
    def body(group: Group) -> list[int]:
        if group.rank == 1:
            for tag, memory in enumerate(buffers(5)):
                memory.value = b"%d" % tag
                post(group, memory, 0, tag)
            return []
        queue, found = group.completion_queue(), []
        for tag, memory in enumerate(buffers(5)):
            transfer = group.recv(ctypes.addressof(memory), 8, DType.UINT8, 1, tag)
            queue.add(transfer, (tag, memory))
        while len(found) < 5:
            for each in queue.wait(LONG):
                tag, memory = each.token
                assert each.error is None
                assert each.ended_ns > 0
                assert memory.value == b"%d" % tag
                found.append(tag)
        assert queue.poll() == []
        assert queue.wait(SHORT) == []
        return sorted(found)

    assert run_ranks(2, body)[0] == [0, 1, 2, 3, 4]


def test_an_operation_that_fails_comes_out_with_its_error() -> None:
    def body(group: Group) -> str:
        if group.rank == 1:
            group.abort("no more")
            return ""
        queue, (memory,) = group.completion_queue(), buffers(1)
        queue.add(group.recv(ctypes.addressof(memory), 8, DType.UINT8, 1, 0), memory)
        (ended,) = queue.wait(LONG)
        assert isinstance(ended.error, PeerError)
        return str(ended.error)

    assert "no more" in run_ranks(2, body)[0]


def test_the_loopback_fabric_has_such_queues_too() -> None:
    first, second = LoopbackFabric(2).groups
    queue, (sent, received) = first.completion_queue(), buffers(2)
    sent.value = b"seven"
    queue.add(first.recv(ctypes.addressof(received), 8, DType.UINT8, 1, 7), "token")
    assert queue.poll() == []
    post(second, sent, 0, 7)
    (ended,) = queue.wait(LONG)
    assert (ended.token, ended.error, received.value) == ("token", None, b"seven")
