"""Tests that a fault in simulated traffic is named: link, direction, time and cause."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackline.detect import Condition, Probe, Tracker, Verdict
from slackline.testing.simulated_network import (
    MS,
    SAMPLE_EVERY,
    Clock,
    Network,
    S,
    between,
    healthy,
)

ITERATION = 368 * MS
"""The iteration time of a pipeline: the shortest of the published runs with a delay of 30 ms on one
link."""


def news(network: Network, rank: int, until_ns: int) -> list[tuple[int, Verdict]]:
    """Return (true time, verdict) for each verdict, a fault report, of a rank's health tracker."""
    start_ns = network.clocks[rank].read(0)
    tracker = Tracker(start_ns)
    return [
        (round((verdict.time_ns - start_ns) / (1 + network.clocks[rank].drift)), verdict)
        for now_ns, samples in network.samples(rank, until_ns)
        for verdict in tracker.take(now_ns, samples)
    ]


def everybody(network: Network, until_ns: int) -> list[tuple[int, int, Verdict]]:
    """Return (true time, rank, verdict) for the verdicts of all ranks, ordered by time."""
    said = [
        (time_ns, rank, verdict)
        for rank in range(network.ranks)
        for time_ns, verdict in news(network, rank, until_ns)
    ]
    return sorted(said, key=lambda item: item[:2])


@pytest.mark.parametrize("seed", range(5))
def test_a_delay_of_30_ms_is_named_within_three_iterations(seed: int) -> None:
    network = healthy(4, seed)
    network.iteration_ns = ITERATION
    begin, end = 12 * S + seed * 70 * MS, 20 * S
    network.directions[2, 3].delay = between(begin, end, 30 * MS)
    said = everybody(network, 24 * S)

    found_ns, _, first = said[0]
    assert begin < found_ns <= begin + 3 * ITERATION
    for time_ns, rank, verdict in said[:2]:
        assert rank in (2, 3)
        assert (verdict.condition, verdict.source, verdict.target) == (Condition.SLOW, 2, 3)
        since = verdict.since_ns - network.clocks[rank].read(0)
        assert abs(since - begin) < 300 * MS
        assert time_ns <= begin + 4 * ITERATION
    assert first.reason.startswith("link 2>3 is slow since 12.")
    assert ": 30 ms over its usual 10" in first.reason
    back = said[2:]
    assert {(rank, verdict.condition) for _, rank, verdict in back} == {
        (2, Condition.BACK),
        (3, Condition.BACK),
    }
    assert all(end < time_ns < end + 2 * S for time_ns, _, _ in back)


def test_the_sentences_of_a_delay_and_of_its_end() -> None:
    network = healthy(4, 1)
    network.directions[2, 3].delay = between(20 * S, 28 * S, 30 * MS)
    assert [verdict.reason for _, verdict in news(network, 2, 32 * S)] == [
        "link 2>3 is slow since 20.1 s: 30 ms over its usual 109 us; "
        "nothing more than usual waits at the sender",
        "link 2>3 is back at 28.8 s: 108 us one way, after 8.67 s",
    ]


def test_both_directions_are_named_when_both_are_slow() -> None:
    network = healthy(2, 5)
    for pair in ((0, 1), (1, 0)):
        network.directions[pair].delay = between(20 * S, 28 * S, 30 * MS)
    said = everybody(network, 26 * S)
    assert {(rank, v.source, v.target) for _, rank, v in said} == {
        (0, 0, 1),
        (0, 1, 0),
        (1, 0, 1),
        (1, 1, 0),
    }


def test_the_other_direction_is_well_however_long_one_is_slow_and_the_clocks_drift() -> None:
    network = healthy(2, 6)
    network.clocks = [Clock(), Clock(offset_ns=-7200 * S, drift=50e-6)]
    network.directions[0, 1].delay = between(20 * S, 900 * S, 30 * MS)
    said = [(v.condition, v.source, v.target) for _, v in news(network, 1, 960 * S)]
    assert said == [(Condition.SLOW, 0, 1), (Condition.BACK, 0, 1)]


def test_half_of_the_bandwidth_is_named_and_its_return() -> None:
    network = healthy(4, 1)
    network.directions[2, 3].rate = between(20 * S, 28 * S, 58e6, 117.5e6)
    said = everybody(network, 34 * S)
    assert [(rank, v.condition) for _, rank, v in said] == [(2, Condition.SLOW), (2, "back")]
    assert said[0][2].reason == (
        "link 2>3 is slow since 20.0 s: carries 455 Mbit/s of its usual 923 Mbit/s; "
        "nothing more than usual waits at the sender"
    )
    assert said[0][0] <= 20 * S + 5 * SAMPLE_EVERY


def test_loss_is_named_and_its_end() -> None:
    network = healthy(4, 1)
    network.directions[2, 3].loss = between(20 * S, 28 * S, 0.012)
    said = everybody(network, 34 * S)
    assert [(rank, v.condition) for _, rank, v in said] == [(2, Condition.LOSING), (2, "back")]
    assert said[0][2].reason == "link 2>3 loses 1.12% of packets since 20.0 s"


@given(
    seed=st.integers(0, 1000),
    begin_ms=st.integers(12_000, 14_000),
    lasting_ms=st.integers(150, 900),
    usual_ms=st.integers(0, 8),
    delay_ms=st.integers(2, 60),
    takes=st.integers(1, 12),
)
def test_a_latency_is_told_only_while_it_is_longer_than_usual(
    seed: int, begin_ms: int, lasting_ms: int, usual_ms: int, delay_ms: int, takes: int
) -> None:
    """Lay on delays that end before their evidence is read, and queues that then are empty."""
    network = healthy(2, seed)
    begin, end = begin_ms * MS, (begin_ms + lasting_ms) * MS

    def delay(time_ns: int) -> int:
        if time_ns >= end:
            return 0
        return (usual_ms + (delay_ms if time_ns >= begin else 0)) * MS

    network.directions[0, 1].delay = delay
    tracker = Tracker(network.clocks[0].read(0))
    probes: list[Probe] = []
    for number, (now_ns, (sample,)) in enumerate(network.samples(0, 17 * S)):
        probes += sample.probes
        if number % takes == 0:
            verdicts = tracker.take(now_ns, [replace(sample, probes=tuple(probes))])
            probes.clear()
            assert all(each.over_ns > 0 for each in verdicts if each.condition == Condition.SLOW)
            assert all(" -" not in each.reason for each in tracker.judgements(now_ns))


def test_a_udp_rail_loses_more_before_its_loss_is_named() -> None:
    """Queues drop packets while a UDP rail fills them to find the rate of its path."""
    for loss, named in ((0.012, False), (0.018, False), (0.024, True), (0.05, True)):
        network = healthy(4, 1)
        network.kind = "udp"
        network.directions[2, 3].loss = between(20 * S, 28 * S, loss)
        said = [(rank, verdict.condition) for _, rank, verdict in everybody(network, 34 * S)]
        assert said == ([(2, Condition.LOSING), (2, "back")] if named else [])


def test_a_second_finding_is_news_as_well() -> None:
    network = healthy(2, 3)
    network.directions[0, 1].loss = between(20 * S, 60 * S, 0.05)
    network.directions[0, 1].delay = between(30 * S, 40 * S, 30 * MS)
    reasons = [verdict.reason.split(";")[0] for _, verdict in news(network, 0, 50 * S)]
    assert len(reasons) == 3
    assert reasons[0].startswith("link 0>1 loses 5")
    assert ", loses " in reasons[1]
    assert reasons[2].startswith("link 0>1 loses ")


@pytest.mark.parametrize("change_ns", [200_000, 900_000])
def test_a_delay_below_what_counts_is_jitter(change_ns: int) -> None:
    network = healthy(2, 4)
    network.directions[0, 1].delay = between(20 * S, 60 * S, change_ns)
    assert everybody(network, 60 * S) == []


def test_less_than_a_tenth_of_a_long_path_is_jitter_and_more_is_not() -> None:
    network = healthy(2, 4, least_ns=40 * MS)
    network.directions[0, 1].delay = between(20 * S, 60 * S, 3.5 * MS)
    assert everybody(network, 60 * S) == []
    network.directions[0, 1].delay = between(20 * S, 60 * S, 8 * MS)
    assert {v.target for _, _, v in everybody(network, 60 * S)} == {1}
