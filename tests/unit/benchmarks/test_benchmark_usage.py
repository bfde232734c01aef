"""Tests of the resources that contestants use, and of the order of their turns."""

import os
from pathlib import Path

import pytest
from _harness.machine import (
    busy_seconds,
    idle_seconds,
    sent_bytes,
    sent_packets,
    softirq_seconds,
)
from _harness.rounds import in_turns
from _harness.usage import Reading, Usage


def reading(*values: float) -> Reading:
    names = ("time_s", "user_s", "system_s", "voluntary", "involuntary", "idle_s")
    return Reading(**dict(zip(names, values, strict=True)))


def test_usage_is_an_operations_share_of_what_was_used_between_two_readings() -> None:
    after, before = reading(9.0, 5.0, 3.0, 50, 9, 8.0), reading(1.0, 1.0, 1.0, 10, 1, 2.0)
    assert after.since(before, 4) == Usage(
        seconds=2.0, user_s=1.0, system_s=0.5, voluntary=10.0, involuntary=2.0, idle_s=1.5
    )


def test_spans_are_added_and_shared_among_operations() -> None:
    first = reading(2.0, 1.0, 0.5, 4, 2, 0.5).since(reading(0.0, 0.0, 0.0, 0, 0, 0.0), 1)
    second = reading(9.0, 4.0, 2.5, 16, 6, 7.5).since(reading(5.0, 2.0, 1.0, 10, 4, 6.0), 1)
    assert (first + second).over(2) == Usage(
        seconds=3.0, user_s=1.5, system_s=1.0, voluntary=5.0, involuntary=2.0, idle_s=1.0
    )


def test_every_other_round_is_reversed() -> None:
    assert in_turns(["a", "b", "c"], 0) == ["a", "b", "c"]
    assert in_turns(["a", "b", "c"], 1) == ["c", "b", "a"]
    assert in_turns(["a", "b", "c"], 2) == ["a", "b", "c"]


def test_processor_time_is_read_by_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Path, "read_text", lambda _path: "cpu  100 20 3000 9 8 40 500 60 0 0\ncpu0 1 1 1 1\n"
    )
    tick = os.sysconf("SC_CLK_TCK")
    assert softirq_seconds() == 500 / tick
    assert idle_seconds() == 9 / tick + 8 / tick
    assert busy_seconds() == pytest.approx((100 + 20 + 3000 + 40 + 500) / tick)


def test_packets_and_bytes_are_those_of_one_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    table = (
        "Inter-|   Receive                            |  Transmit\n"
        " face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs\n"
        "    lo: 10 1 0 0 0 0 0 0 20 2 0 0 0 0 0 0\n"
        "  eth0:30 3 0 0 0 0 0 0 40 44 0 0 0 0 0 0\n"
    )
    asked = []
    monkeypatch.setattr(Path, "read_text", lambda path: asked.append(str(path)) or table)
    assert sent_packets(7, "eth0") == 44
    assert sent_packets(7, "lo") == 2
    assert sent_bytes(7, "eth0") == 40
    assert asked == ["/proc/7/net/dev"] * 3
    with pytest.raises(KeyError, match="eth1"):
        sent_packets(7, "eth1")
