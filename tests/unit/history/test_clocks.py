"""Tests of the comparison of hosts' clocks while ranks write."""

from collections.abc import Iterable
from itertools import permutations

import pytest
from made_records import SECOND_NS, START_NS, header

from slackline.history import Alignment, _clocks, align
from slackline.records import ClockOffset, Record

UPTIMES_NS = (0, 90 * 86_400 * SECOND_NS, 5 * SECOND_NS)


def test_hosts_with_other_uptimes_are_compared_once_in_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compare hosts that started 90 days apart, from which their monotonic clocks count."""
    compared = []

    def comparing(records: Iterable[Record]) -> Alignment:
        compared.append(1)
        return align(records)

    monkeypatch.setattr(_clocks, "align", comparing)
    clocks = _clocks.Clocks()
    for rank, uptime_ns in enumerate(UPTIMES_NS):
        clocks.begin(header(rank, clock=f"boot {rank}", monotonic_ns=uptime_ns))
    for second in range(100):
        for rank, peer in permutations(range(3), 2):
            offset = ClockOffset(
                rank=rank,
                peer=peer,
                at_ns=UPTIMES_NS[rank] + second * SECOND_NS,
                offset_ns=UPTIMES_NS[peer] - UPTIMES_NS[rank],
                error_ns=1000,
            )
            clocks.take(offset, START_NS + second * SECOND_NS)
            assert abs(clocks.shift_ns(rank)) <= 1000
    pairs = 6
    assert len(compared) <= pairs + 100 // 10 + 1
    assert clocks.apart == []
