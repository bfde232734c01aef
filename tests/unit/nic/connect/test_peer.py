"""Tests of the time limits of handshakes between ranks."""

from datetime import timedelta

import pytest

from slackline.nic import Group, NicOptions
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
