"""Tests of the handshakes between ranks: their time limits, and what a call for a rail does."""

import asyncio
import time
from datetime import timedelta

import numpy as np
import pytest

from slackline.nic import Group, NicOptions
from slackline.nic.connect._handshake import HandshakeMessage
from slackline.nic.connect._handshake_channel import HandshakeChannel
from slackline.nic.connect._peer import Peer
from slackline.testing import run_ranks
from slackline.wire import DType, ReduceOp

_PATIENCE_S = 60.0


def size_of(group: Group) -> int:
    return group.size


def test_a_handshake_over_shared_memory_may_take_longer_than_one_over_a_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check with a limit of 0 seconds, which every handshake over a network exceeds."""
    monkeypatch.setattr("slackline.nic.connect._peer._HANDSHAKE_S", 0.0)
    options = NicOptions(rails=("shm",), arena_bytes=64 << 20)
    assert run_ranks(3, size_of, options=options, timeout=timedelta(seconds=10)) == [3, 3, 3]


def test_a_rank_that_stands_still_in_a_handshake_loses_no_rail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check with a limit of 50 ms, and event loops that stand still for 100 ms in a handshake.

    The other end may use the rail as soon as it has sent its last message. If this end then gave up
    because it had read that message too late, the rail would be lost.
    """
    monkeypatch.setattr("slackline.nic.connect._peer._HANDSHAKE_S", 0.05)
    heard = set[HandshakeChannel]()
    receive = HandshakeChannel.receive

    async def stand_still(channel: HandshakeChannel) -> tuple[int, HandshakeMessage]:
        if channel in heard:  # The terms of the other end come next.
            asyncio.get_running_loop().call_soon(time.sleep, 0.1)
        heard.add(channel)
        return await receive(channel)

    monkeypatch.setattr(HandshakeChannel, "receive", stand_still)
    options = NicOptions(rails=("tcp",), arena_bytes=64 << 20)
    lost = run_ranks(2, lambda group: group.counters()["rails_lost"], options=options)
    assert lost == [0, 0]


def sum_is_right(group: Group) -> None:
    values = np.ones(100_000, np.float32)
    at = values.ctypes.data
    group.all_reduce(at, at, values.size, DType.FLOAT32, ReduceOp.SUM, blocking=True)
    assert set(values.tolist()) == {2.0}


async def call_for_rail(peer: Peer, lost: int) -> None:
    """Call the dialling rank, as the other rank does that has lost the connection `lost`."""
    rail = peer.rails.get(0)
    assert rail is not None
    job, rail.job = rail.job, lost
    async with peer._handshake(rail, "liveness"):
        rail.job = job


def test_the_dialling_rank_remakes_the_connection_that_the_other_rank_says_it_has_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listening: list[Peer] = []
    start = Peer.start

    def started(peer: Peer, *, asks: bool = False) -> None:
        if not (peer.calls or peer in listening):
            listening.append(peer)
        start(peer, asks=asks)

    monkeypatch.setattr(Peer, "start", started)

    def body(group: Group) -> None:
        sum_is_right(group)
        if group.rank == 1:
            (peer,) = listening
            rail = peer.rails.get(0)
            assert rail is not None
            manager = peer._context.manager
            manager.run(call_for_rail(peer, 0))
            manager.run(call_for_rail(peer, rail.job ^ 1))
            manager.run(call_for_rail(peer, rail.job))
            end = time.monotonic() + _PATIENCE_S
            while rail.added < 2:
                assert time.monotonic() < end, "the dialling rank kept the connection"
                time.sleep(0.01)
        sum_is_right(group)
        sum_is_right(group)
        # A call that names another connection than the present one changes nothing.
        assert group.counters()["rails_lost"] == 1

    options = NicOptions(rails=("tcp",), arena_bytes=64 << 20)
    run_ranks(2, body, options=options)
