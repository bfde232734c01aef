"""Tests with recorded samples of a healthy training whose transfers fill the link for seconds.

Two hosts at 200 Mbit/s train a model of 114 MB: rank 0 first sends the whole model, so that the
usual latency of the other direction is learned without data. Then each step sends in both
directions for four seconds.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackline.detect import Condition, Probe, RailSample, Tracker, Verdict

FOLDER = Path(__file__).parents[2] / "support" / "recorded_samples"
S, MS = 1_000_000_000, 1_000_000


@cache
def recorded(rank: int) -> tuple[tuple[int, RailSample], ...]:
    """Return the samples of a rank, each with the time at which it was taken."""
    return tuple(_samples(rank))


def _samples(rank: int) -> Iterator[tuple[int, RailSample]]:
    with gzip.open(FOLDER / f"long_transfers-{rank}.jsonl.gz", "rt") as lines:
        for line in lines:
            now_ns, frames, queued, unconfirmed, confirmed, received, busy_ns, probes = json.loads(
                line
            )
            yield (
                now_ns,
                RailSample(
                    rank=rank,
                    peer=1 - rank,
                    frames_sent=frames,
                    queued_bytes=queued,
                    unconfirmed_bytes=unconfirmed,
                    confirmed_bytes=confirmed,
                    received_bytes=received,
                    busy_ns=busy_ns,
                    probes=tuple(Probe(*probe) for probe in probes),
                ),
            )


def told(rank: int, *, after_ns: int = 2**62, late_ns: int = 0) -> list[Verdict]:
    """Return the verdicts of a rank if its probes out are late from a time after its start on."""
    samples = recorded(rank)
    tracker = Tracker(samples[0][0])
    found = []
    for now_ns, sample in samples:
        probes = [_later(probe, samples[0][0] + after_ns, late_ns) for probe in sample.probes]
        found += tracker.take(now_ns, [replace(sample, probes=tuple(probes))])
    return found


def _later(probe: Probe, from_ns: int, late_ns: int) -> Probe:
    if probe.sent_ns < from_ns:
        return probe
    return probe._replace(
        received_ns=probe.received_ns + late_ns,
        answered_ns=probe.answered_ns + late_ns,
        back_ns=probe.back_ns + late_ns,
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_probes_behind_the_rails_own_data_are_no_delay(rank: int) -> None:
    assert told(rank) == []


@given(
    rank=st.integers(0, 1),
    after_ms=st.integers(10_000, 24_000),
    late_ms=st.integers(30, 200),
)
def test_a_delay_is_found_although_data_fill_the_link(
    rank: int, after_ms: int, late_ms: int
) -> None:
    first, *_ = told(rank, after_ns=after_ms * MS, late_ns=late_ms * MS)
    assert first.condition is Condition.SLOW
    assert (first.source, first.target) == (rank, 1 - rank)
    found_ns = first.time_ns - recorded(rank)[0][0] - after_ms * MS
    assert 0 < found_ns < 4 * S
