"""Tests of the health tracker: rails (paths to a peer) that fall silent, end or are reconnected;
ranks that leave; ranks that are late."""

from dataclasses import replace

from slackline.detect import Condition, RailSample, Tracker, Verdict
from slackline.testing.simulated_network import MS, Network, S, between, healthy


def _known(tracker: Tracker, network: Network, rank: int, until_ns: int) -> list[RailSample]:
    samples: list[RailSample] = []
    for now_ns, samples in network.samples(rank, until_ns):
        assert tracker.take(now_ns, samples) == []
    return samples


def _after(network: Network, time_ns: int) -> int:
    return network.clocks[0].read(time_ns)


def test_a_rail_that_the_engine_suspects_is_silent_until_it_is_used_again() -> None:
    network = healthy(2, 1)
    tracker = Tracker(network.clocks[0].read(0))
    (sample,) = _known(tracker, network, 0, 10 * S)
    (silent,) = tracker.take(_after(network, 12 * S), [replace(sample, up=False)])
    assert silent.reason == "link 0-1 is silent since 12.0 s"
    assert tracker.take(_after(network, 13 * S), [replace(sample, up=False)]) == []
    assert tracker.judgements(_after(network, 13 * S))[0].reason == (
        "link 0-1 is silent since 12.0 s: no answer for 1 s"
    )
    (back,) = tracker.take(_after(network, 14 * S), [sample])
    assert back.reason == "link 0>1 is back at 14.0 s: 107 us one way, after 2 s"


def test_one_missing_rail_of_two_is_named() -> None:
    network = healthy(2, 1)
    tracker = Tracker(network.clocks[0].read(0))
    (sample,) = _known(tracker, network, 0, 10 * S)
    second = replace(sample, rail=1, name="tcp 10.77.1.1>10.77.1.2", probes=())
    assert tracker.take(_after(network, 11 * S), [sample, second]) == []
    assert tracker.take(_after(network, 12 * S), [sample]) == []
    (cut,) = tracker.take(_after(network, 13 * S), [sample])
    assert (cut.condition, cut.rail) == (Condition.CUT, 1)
    assert cut.reason == "link 0-1 on rail 1 (tcp 10.77.1.1>10.77.1.2) is cut since 12.0 s"


def test_a_peer_that_has_left_is_no_news() -> None:
    network = healthy(3, 1)
    tracker = Tracker(network.clocks[0].read(0))
    samples = _known(tracker, network, 0, 10 * S)
    for second in (11, 12, 13):
        assert tracker.take(_after(network, second * S), samples[:1], ended=[2]) == []
    assert {state.target for state in tracker.states()} == {0, 1}


def test_a_rail_that_is_dialled_again_counts_from_zero_and_gives_no_verdict() -> None:
    network = healthy(2, 2)
    tracker = Tracker(network.clocks[0].read(0))
    base = RailSample(rank=0, peer=1)
    counters = ("frames_sent", "packets_sent", "packets_resent", "confirmed_bytes", "busy_ns")
    for now_ns, (sample,) in network.samples(0, 120 * S):
        if now_ns - network.clocks[0].read(0) > 60 * S and base.confirmed_bytes == 0:
            base = sample
        fresh = {name: getattr(sample, name) - getattr(base, name) for name in counters}
        assert tracker.take(now_ns, [replace(sample, **fresh)]) == []


def test_a_change_of_message_sizes_is_no_change_of_bandwidth() -> None:
    network = healthy(2, 2)
    tracker = Tracker(network.clocks[0].read(0))
    frames = 0
    for now_ns, (sample,) in network.samples(0, 120 * S):
        small = now_ns - network.clocks[0].read(0) > 60 * S
        frames += 200 if small else 60
        busy_ns = sample.busy_ns * (3 if small else 1)
        samples = [replace(sample, frames_sent=frames, busy_ns=busy_ns, probes=sample.probes)]
        assert [v for v in tracker.take(now_ns, samples) if "carries" in v.reason] == []


def test_where_the_bytes_wait_is_told() -> None:
    network = healthy(2, 1)
    network.directions[0, 1].rate = between(20 * S, 60 * S, 30e6, 117.5e6)
    tracker = Tracker(network.clocks[0].read(0))
    said: list[Verdict] = []
    for now_ns, (sample,) in network.samples(0, 30 * S):
        slow = now_ns - network.clocks[0].read(0) > 20 * S
        waiting = 2_000_000 if slow else 10_000
        said += tracker.take(
            now_ns, [replace(sample, queued_bytes=waiting, unconfirmed_bytes=waiting)]
        )
    assert [verdict.reason for verdict in said] == [
        "link 0>1 is slow since 20.0 s: carries 236 Mbit/s of its usual 924 Mbit/s; "
        "queueing at the sender's NIC"
    ]


def test_a_rank_all_of_whose_links_are_late_is_late_itself() -> None:
    network = healthy(4, 1)
    for peer in (0, 1, 2):
        network.directions[peer, 3].delay = between(20 * S, 26 * S, 30 * MS)
    tracker = Tracker(network.clocks[3].read(0))
    said = [
        verdict
        for now_ns, samples in network.samples(3, 34 * S)
        for verdict in tracker.take(now_ns, samples)
    ]
    (late,) = (verdict for verdict in said if verdict.condition is Condition.LATE)
    assert (late.source, late.target) == (3, 3)
    assert late.reason.startswith("rank 3 answers late: 30 ")
    assert late.reason.endswith(
        " ms over the usual on all 3 links into it; "
        "the rank, its host or its NIC is slow, not the links"
    )
    assert [v.reason for v in said if v.source == v.target][-1] == "rank 3 answers in time again"


def test_the_same_samples_give_the_same_news() -> None:
    def told() -> list[Verdict]:
        network = healthy(3, 9)
        network.directions[0, 2].delay = between(10 * S, 15 * S, 30 * MS)
        tracker = Tracker(network.clocks[0].read(0))
        return [
            v for now, samples in network.samples(0, 20 * S) for v in tracker.take(now, samples)
        ]

    first = told()
    assert first
    assert first == told()
