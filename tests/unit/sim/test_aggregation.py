"""The model of an aggregation node: onset, senders, and agreement with the discrete events."""

from fractions import Fraction

import pytest

from slackline.errors import UsageError
from slackline.plan.collective import Collective, generate
from slackline.sim import (
    Aggregation,
    Fabric,
    Framing,
    Host,
    Operation,
    Senders,
    simulate_aggregation,
    simulate_collective,
)

US = 10**6
NODE = Aggregation(workers=4, rate_bps=10**10, payload_bytes=1000, overhead_bytes=250)
"""A frame takes a microsecond on a wire."""


@pytest.mark.parametrize(
    ("onset", "first_us", "last_us", "buffered"),
    [(1, 1, 5, 1), (2, 2, 6, 2), (4, 4, 8, 4), (9, 4, 8, 4), (0, 4, 8, 4)],
)
def test_sums_begin_at_the_onset_threshold(
    onset: int, first_us: int, last_us: int, buffered: int
) -> None:
    run = simulate_aggregation(NODE, 4000, onset=onset)
    assert (run.first_ps, run.last_ps) == (first_us * US, last_us * US)
    assert (run.starved_ps, run.frames, run.most_buffered) == (0, 4, buffered)


def test_a_last_frame_is_as_long_as_its_payload() -> None:
    run = simulate_aggregation(NODE, 3500)
    # Three frames of a microsecond and one of 750 bytes, 600 ns, after the first has arrived.
    assert (run.frames, run.last_ps) == (4, 4 * US + 600_000)


def test_wires_and_the_node_add_their_latency() -> None:
    slow = Aggregation(
        workers=2,
        rate_bps=10**10,
        payload_bytes=1000,
        overhead_bytes=250,
        latency_ps=5 * US,
        inside_ps=US,
    )
    run = simulate_aggregation(slow, 4000)
    assert (run.first_ps, run.last_ps) == (12 * US, 16 * US)


def test_paced_senders_starve_the_node_between_frames() -> None:
    paced = Aggregation(
        workers=1,
        rate_bps=10**10,
        payload_bytes=1000,
        overhead_bytes=250,
        senders=Senders(pattern="paced", rate_bps=5 * 10**9),
    )
    run = simulate_aggregation(paced, 4000)
    phase = run.first_ps - US
    assert 0 <= phase < 2 * US
    assert (run.last_ps, run.starved_ps) == (phase + 8 * US, 3 * US)
    higher = simulate_aggregation(paced, 4000, onset=3)
    # Frames arrive at 1, 3, 5 and 7 us: from the third on only the fourth is waited for.
    assert (higher.first_ps, higher.last_ps) == (phase + 5 * US, phase + 9 * US)
    assert higher.starved_ps == 0


def test_frames_of_a_burst_follow_each_other() -> None:
    bursty = Aggregation(
        workers=1,
        rate_bps=10**10,
        payload_bytes=1000,
        overhead_bytes=250,
        senders=Senders(pattern="bursty", rate_bps=5 * 10**9, burst=2),
    )
    run = simulate_aggregation(bursty, 4000)
    # Frames arrive at 1, 2, 5 and 6 us after the phase.
    assert (run.last_ps - run.first_ps, run.starved_ps) == (6 * US, 2 * US)


def test_a_seed_gives_one_trace() -> None:
    def last(seed: int) -> int:
        senders = Senders(pattern="bursty", rate_bps=10**9, burst=4, seed=seed)
        node = Aggregation(
            workers=4, rate_bps=10**10, payload_bytes=1000, overhead_bytes=250, senders=senders
        )
        return simulate_aggregation(node, 64_000).last_ps

    assert last(1) == last(1)
    assert last(1) != last(2)


def test_the_model_agrees_with_discrete_events_within_two_frames() -> None:
    # In the discrete events the aggregator has one port of four times the rate.
    hosts = (*(Host(rates_bps=(10**10,), cores=2),) * 4, Host(rates_bps=(4 * 10**10,), cores=2))
    fabric = Fabric(hosts=hosts, framing=Framing(header_bytes=58))
    plan = generate(Collective.ALL_REDUCE, "star", 4)
    operation = Operation(plan=plan, count=370 * 64, segment_bytes=1480)
    simulated = simulate_collective(operation, fabric).duration_ps
    node = Aggregation(workers=4, rate_bps=10**10, payload_bytes=1480, overhead_bytes=58)
    modelled = simulate_aggregation(node, 1480 * 64).last_ps
    frame_ps = 1538 * 800
    assert modelled == 65 * frame_ps
    assert abs(simulated - modelled) <= 2 * frame_ps


def test_store_and_forward_takes_twice_as_long_at_large_sizes() -> None:
    size = 1000 * 1000
    ratio = Fraction(
        simulate_aggregation(NODE, size, onset=0).last_ps, simulate_aggregation(NODE, size).last_ps
    )
    assert ratio == Fraction(2000, 1001)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"pattern": "late"}, "pattern must be one of uniform, paced, bursty, not 'late'"),
        ({"burst": 0}, "burst must be a positive integer, not 0"),
        ({"burst": 2}, "uniform senders have neither a rate nor bursts"),
        ({"pattern": "paced", "burst": 2}, "paced senders have no bursts, not bursts of 2"),
    ],
)
def test_senders_that_do_not_fit_are_refused(values: dict, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        Senders(**values)
    assert str(raised.value) == said


def test_a_node_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^workers must be a positive integer, not 0$"):
        Aggregation(workers=0, rate_bps=1, payload_bytes=1, overhead_bytes=0)
    with pytest.raises(UsageError, match=r"^inside_ps must be at least 0, not -1$"):
        Aggregation(workers=1, rate_bps=1, payload_bytes=1, overhead_bytes=0, inside_ps=-1)
    said = "^senders must not be faster than their wires: 2 bit/s are more than 1$"
    with pytest.raises(UsageError, match=said):
        Aggregation(
            workers=1,
            rate_bps=1,
            payload_bytes=1,
            overhead_bytes=0,
            senders=Senders(pattern="paced", rate_bps=2),
        )
    with pytest.raises(UsageError, match=r"^a message must have at least one byte, not 0$"):
        simulate_aggregation(NODE, 0)
    with pytest.raises(UsageError, match=r"^onset must be at least 0, not -1$"):
        simulate_aggregation(NODE, 1, onset=-1)
