"""Simulated collectives on an ideal network take what theory says, to the picosecond."""

from dataclasses import replace

import pytest

from slackline.errors import UsageError
from slackline.plan.collective import Collective, generate
from slackline.sim import Fabric, Framing, Host, Operation, lower_bound, simulate_collective

BYTE_PS = 1000
"""The time of a byte at 8 Gbit/s, in picoseconds."""
RATE = 8 * 10**9
LATENCY_PS = 700_000
"""The latency of a path, which has two cables."""
SEGMENT = 1024


def fabric(hosts: int, *, rate_bps: int = RATE, latency_ps: int = LATENCY_PS) -> Fabric:
    return Fabric.uniform(hosts, rate_bps=rate_bps, latency_ps=latency_ps // 2)


def operation(name: str, ranks: int, segments: int, *, segment: int = SEGMENT) -> Operation:
    """Return an all_reduce of float32 in which each chunk has `segments` segments."""
    plan = generate(Collective.ALL_REDUCE, name, ranks)
    count = plan.chunks * segments * segment // 4
    return Operation(plan=plan, count=count, segment_bytes=segment)


def duration_ps(name: str, ranks: int, segments: int, on: Fabric, **sizes: int) -> int:
    return simulate_collective(operation(name, ranks, segments, **sizes), on).duration_ps


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
@pytest.mark.parametrize("segments", [1, 2, 5])
@pytest.mark.parametrize("latency_ps", [0, 1_000_000, 3_000_000])
def test_a_ring_takes_its_steps_one_after_another(
    ranks: int, segments: int, latency_ps: int
) -> None:
    """Compute a step: until the chunk has left, or until its first segment could leave again."""
    chunk_ps, segment_ps = segments * SEGMENT * BYTE_PS, SEGMENT * BYTE_PS
    step_ps = max(chunk_ps, segment_ps + latency_ps)
    steps = 2 * (ranks - 1)
    expected = (steps - 1) * step_ps + chunk_ps + latency_ps
    assert duration_ps("ring", ranks, segments, fabric(ranks, latency_ps=latency_ps)) == expected


def test_a_ring_without_pipelining_pays_the_latency_of_every_step() -> None:
    """Expect 2 (n - 1) / n S / r and 2 (n - 1) latencies."""
    ranks, nbytes = 4, 4 * SEGMENT
    expected = 2 * (ranks - 1) * nbytes * BYTE_PS // ranks + 2 * (ranks - 1) * LATENCY_PS
    assert duration_ps("ring", ranks, 1, fabric(ranks)) == expected


def test_a_ring_with_many_segments_pays_one_latency() -> None:
    ranks, segments = 4, 64
    nbytes = ranks * segments * SEGMENT
    expected = 2 * (ranks - 1) * nbytes * BYTE_PS // ranks + LATENCY_PS
    assert duration_ps("ring", ranks, segments, fabric(ranks)) == expected


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_direct_fills_the_ports_once(ranks: int) -> None:
    """Expect (n - 1) S / r and one latency: everything is sent at once and in turn to each peer."""
    expected = (ranks - 1) * 3 * SEGMENT * BYTE_PS + LATENCY_PS
    assert duration_ps("direct", ranks, 3, fabric(ranks)) == expected


@pytest.mark.parametrize("ranks", [3, 4, 6])
def test_a_mesh_pays_two_latencies_where_chunks_are_whole(ranks: int) -> None:
    """Expect 2 (n - 1) / n S / r and 2 latencies."""
    expected = 2 * (ranks - 1) * SEGMENT * BYTE_PS + 2 * LATENCY_PS
    assert duration_ps("mesh", ranks, 1, fabric(ranks)) == expected


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_a_chain_of_one_segment_takes_every_hop(ranks: int) -> None:
    hops = 2 * (ranks - 1)
    expected = hops * (SEGMENT * BYTE_PS + LATENCY_PS)
    assert duration_ps("reduce-broadcast", ranks, 1, fabric(ranks)) == expected


@pytest.mark.parametrize(("ranks", "steps"), [(2, 2), (4, 4), (8, 6)])
def test_halving_doubling_takes_a_logarithm_of_steps(ranks: int, steps: int) -> None:
    """Expect 2 (p - 1) / p S / r without latency, and 2 log2 p latencies."""
    latency_ps = 10**9
    assert duration_ps("halving-doubling", ranks, 1, fabric(ranks, latency_ps=0)) == (
        2 * (ranks - 1) * SEGMENT * BYTE_PS
    )
    late_ps = duration_ps("halving-doubling", ranks, 1, fabric(ranks, latency_ps=latency_ps))
    assert late_ps // latency_ps == steps


def star(ranks: int, segments: int, *, onset: int) -> tuple[Operation, Fabric]:
    """Return a star whose aggregator has a port as fast as those of all ranks together."""
    one = replace(operation("star", ranks, segments), onset=onset)
    rank = Host(rates_bps=(RATE,), latency_ps=LATENCY_PS // 2)
    middle = Host(rates_bps=(ranks * RATE,), latency_ps=LATENCY_PS // 2)
    return one, Fabric(hosts=(rank,) * ranks + (middle,))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("onset", [1, 2, 5])
def test_an_aggregator_is_late_by_its_onset_threshold(ranks: int, onset: int) -> None:
    """Expect S / r, `onset` segments and two latencies; the last rank is served last."""
    segment_ps, segments = SEGMENT * BYTE_PS, 8
    one, on = star(ranks, segments, onset=onset)
    served_ps = (ranks - 1) * segment_ps // ranks
    expected = (onset + segments) * segment_ps + 2 * LATENCY_PS + served_ps
    assert simulate_collective(one, on).duration_ps == expected


@pytest.mark.parametrize("ranks", [2, 4])
def test_an_aggregator_that_stores_and_forwards_takes_the_message_twice(ranks: int) -> None:
    segment_ps, segments = SEGMENT * BYTE_PS, 8
    one, on = star(ranks, segments, onset=0)
    served_ps = (ranks - 1) * segment_ps // ranks
    expected = 2 * segments * segment_ps + 2 * LATENCY_PS + served_ps
    assert simulate_collective(one, on).duration_ps == expected


def test_half_the_rate_doubles_the_time_of_the_bytes() -> None:
    whole = duration_ps("ring", 4, 16, fabric(4, latency_ps=0))
    half = duration_ps("ring", 4, 16, fabric(4, rate_bps=RATE // 2, latency_ps=0))
    assert (whole, half) == (6 * 16 * SEGMENT * BYTE_PS, 12 * 16 * SEGMENT * BYTE_PS)


def test_one_host_more_adds_its_part() -> None:
    """Keep S: 2 (n - 1) / n S goes from 3/2 to 8/5 of S."""
    nbytes = 20 * SEGMENT
    times = []
    for ranks in (4, 5):
        plan = generate(Collective.ALL_REDUCE, "ring", ranks)
        one = Operation(plan=plan, count=nbytes // 4, segment_bytes=SEGMENT)
        times.append(simulate_collective(one, fabric(ranks, latency_ps=0)).duration_ps)
    assert times == [nbytes * BYTE_PS * 3 // 2, nbytes * BYTE_PS * 8 // 5]


def test_another_topology_has_another_number_of_steps() -> None:
    """Count steps of six ranks: 10 steps round the ring, 2 + 4 on a torus of 2 by 3."""
    latency_ps = 10**9
    on = fabric(6, latency_ps=latency_ps)
    assert duration_ps("ring", 6, 1, on) // latency_ps == 10
    assert duration_ps("torus", 6, 1, on) // latency_ps == 6


def test_a_slow_port_slows_the_whole_ring() -> None:
    """Pass all that a rank owes through its port: at a quarter of the rate, four times as long."""
    fast, slow = Host(rates_bps=(RATE,)), Host(rates_bps=(RATE // 4,))
    one = operation("ring", 4, 16)
    run = simulate_collective(one, Fabric(hosts=(fast, fast, slow, fast)))
    assert run.duration_ps >= 4 * 6 * 16 * SEGMENT * BYTE_PS
    assert run.duration_ps >= lower_bound(one, Fabric(hosts=(fast, fast, slow, fast))).time_ps


def test_two_nics_halve_the_time_of_the_bytes() -> None:
    one = operation("ring", 4, 16)
    on = Fabric.uniform(4, rate_bps=RATE, nics=2)
    assert simulate_collective(one, on).duration_ps == 6 * 8 * SEGMENT * BYTE_PS


def test_a_switch_that_stores_frames_sends_each_one_twice() -> None:
    """Add one segment for every hop: a frame is received whole before it is sent on."""
    cut, stored = fabric(2), replace(fabric(2), forwards_after_bytes=None)
    hops = 2
    difference = duration_ps("ring", 2, 1, stored) - duration_ps("ring", 2, 1, cut)
    assert difference == hops * SEGMENT * BYTE_PS


def test_headers_and_packets_take_their_time() -> None:
    """Send 1024 bytes and a header of 64 in two packets of at most 1000, each with 66 more."""
    framing = Framing(header_bytes=64, packet_bytes=1000, packet_overhead_bytes=66)
    on = Fabric.uniform(2, rate_bps=RATE, framing=framing)
    assert duration_ps("ring", 2, 1, on) == 2 * (1024 + 64 + 2 * 66) * BYTE_PS


def test_a_frame_costs_its_sender_and_its_receiver_time() -> None:
    """Expect two steps: each frame is prepared, sent, taken and reduced or stored."""
    host = Host(rates_bps=(RATE,), frame_ps=5_000, reduce_bytes_per_second=10**9)
    run = simulate_collective(operation("ring", 2, 1), Fabric(hosts=(host, host)))
    hop_ps = 2 * 5_000 + SEGMENT * BYTE_PS
    assert run.duration_ps == 2 * hop_ps + SEGMENT * BYTE_PS


def test_ranks_of_one_host_use_its_memory() -> None:
    host = Host(rates_bps=(RATE,), memory_bytes_per_second=2 * 10**9, memory_latency_ps=100)
    one = operation("ring", 2, 1)
    run = simulate_collective(one, Fabric(hosts=(host,)), placement=(0, 0))
    # Both ranks write at the same time and share the memory, which is never idle.
    assert run.duration_ps == 4 * SEGMENT * 500 + 100
    assert run.sent_bytes == (0,)


def test_a_rank_that_begins_late_makes_all_late() -> None:
    on, one = fabric(3), operation("ring", 3, 1)
    even = simulate_collective(one, on).duration_ps
    late = simulate_collective(one, on, starts_ps=(0, 5_000_000, 0)).duration_ps
    assert late == even + 5_000_000


def test_hosts_that_share_one_core_process_one_frame_at_a_time() -> None:
    """Expect the time of all eight frame ends on one core, and no wait for a core on two."""
    frame_ps, nbytes = 5 * SEGMENT * BYTE_PS, SEGMENT
    host = Host(rates_bps=(RATE,), frame_ps=frame_ps)
    one = operation("ring", 2, 1)

    def duration_of(shared_cores: int | None) -> int:
        on = Fabric(hosts=(host, host), shared_cores=shared_cores)
        return simulate_collective(one, on).duration_ps

    assert duration_of(1) == 8 * frame_ps
    assert duration_of(2) == duration_of(None) == 2 * (2 * frame_ps + nbytes * BYTE_PS)
    with pytest.raises(UsageError, match=r"^shared_cores must be positive, not 0$"):
        duration_of(0)


def test_partials_of_half_types_are_twice_as_wide() -> None:
    """Send 2 S there and S back: partials are float32 until the last ADD."""
    plan = generate(Collective.ALL_REDUCE, "reduce-broadcast", 2)
    narrow = Operation(plan=plan, count=512, itemsize=2, segment_bytes=1024)
    wide = replace(narrow, partial_itemsize=4, segment_bytes=2048)
    assert simulate_collective(narrow, fabric(2, latency_ps=0)).duration_ps == 2 * 1024 * BYTE_PS
    assert simulate_collective(wide, fabric(2, latency_ps=0)).duration_ps == 3 * 1024 * BYTE_PS


@pytest.mark.parametrize("burst", [0, 300, SEGMENT - 1])
def test_a_token_bucket_lets_its_burst_pass_at_once(burst: int) -> None:
    """Expect a burst once where the bucket has no time to refill, else in each of the two steps."""

    def duration_of(latency_ps: int) -> int:
        host = Host(rates_bps=(RATE,), latency_ps=latency_ps // 2, burst_bytes=burst)
        return duration_ps("ring", 2, 1, Fabric(hosts=(host, host)))

    latency_ps = SEGMENT * BYTE_PS
    assert duration_of(0) == (2 * SEGMENT - burst) * BYTE_PS
    assert duration_of(latency_ps) == 2 * ((SEGMENT - burst) * BYTE_PS + latency_ps)


@pytest.mark.parametrize("name", ["ring", "direct", "reduce-broadcast"])
@pytest.mark.parametrize("burst", [1, 700, 5000, 10**6])
def test_no_execution_on_token_buckets_undercuts_its_lower_bound(name: str, burst: int) -> None:
    host = Host(rates_bps=(RATE,), latency_ps=20_000, burst_bytes=burst)
    one = operation(name, 4, 5)
    framing = Framing(header_bytes=64, packet_bytes=512, packet_overhead_bytes=66)
    for least in (0, 578, None):
        on = Fabric(hosts=(host,) * 4, framing=framing, forwards_after_bytes=least)
        bound = lower_bound(one, on)
        assert simulate_collective(one, on).duration_ps >= bound.time_ps > 0


def test_a_negative_burst_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^burst_bytes must be at least 0, not -1$"):
        Host(rates_bps=(RATE,), burst_bytes=-1)
