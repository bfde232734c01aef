"""Tests of the time limits of handshakes between ranks."""

import asyncio
import time
from datetime import timedelta

import pytest

from slackline.nic import Group, NicOptions
from slackline.nic.connect._handshake import HandshakeMessage
from slackline.nic.connect._handshake_channel import HandshakeChannel
from slackline.testing import run_ranks


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
