"""Samples of rails that were recorded in jobs in a lab, for tests of the detectors."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path

from slackline.detect import Probe, RailSample, Tracker, Verdict

_FOLDER = Path(__file__).parent / "recorded_samples"


@cache
def recorded(job: str, rank: int) -> tuple[tuple[int, RailSample], ...]:
    """Return the samples of all rails of a rank, each with the time at which it was taken."""
    return tuple(_samples(job, rank))


def told(
    job: str, rank: int, *, peer: int = -1, after_ns: int = 2**62, late_ns: int = 0
) -> list[Verdict]:
    """Return the verdicts of a rank.

    From `after_ns` after the first sample on, probes to `peer` arrive `late_ns` later than they
    did.
    """
    samples = recorded(job, rank)
    tracker = Tracker(samples[0][0])
    from_ns = samples[0][0] + after_ns
    found = []
    for now_ns, group in groupby(samples, key=lambda each: each[0]):
        present = [sample for _, sample in group]
        for place, sample in enumerate(present):
            if sample.peer == peer:
                probes = tuple(_later(probe, from_ns, late_ns) for probe in sample.probes)
                present[place] = replace(sample, probes=probes)
        found += tracker.take(now_ns, present)
    return found


def _later(probe: Probe, from_ns: int, late_ns: int) -> Probe:
    if probe.sent_ns < from_ns:
        return probe
    return probe._replace(
        received_ns=probe.received_ns + late_ns,
        answered_ns=probe.answered_ns + late_ns,
        back_ns=probe.back_ns + late_ns,
    )


def _samples(job: str, rank: int) -> Iterator[tuple[int, RailSample]]:
    with gzip.open(_FOLDER / f"{job}-{rank}.jsonl.gz", "rt") as lines:
        for line in lines:
            now_ns, peer, frames, queued, unconfirmed, confirmed, received, busy_ns, probes = (
                json.loads(line)
            )
            yield (
                now_ns,
                RailSample(
                    rank=rank,
                    peer=peer,
                    frames_sent=frames,
                    queued_bytes=queued,
                    unconfirmed_bytes=unconfirmed,
                    confirmed_bytes=confirmed,
                    received_bytes=received,
                    busy_ns=busy_ns,
                    probes=tuple(Probe(*probe) for probe in probes),
                ),
            )
