"""An all_reduce by flows has the times of its frames where queues have no choice, else near."""

from random import Random

import pytest

from slackline.errors import UsageError
from slackline.plan.collective import Collective, generate, hierarchical
from slackline.sim import (
    Fabric,
    Framing,
    Host,
    Operation,
    simulate_alike,
    simulate_collective,
    simulate_flows,
)

RATE = 8 * 10**9
BYTE_PS = 1000
SEGMENT = 1024


def ring(hosts: int, segments: int) -> Operation:
    plan = generate(Collective.ALL_REDUCE, "ring", hosts)
    return Operation(plan=plan, count=hosts * segments * SEGMENT // 4, segment_bytes=SEGMENT)


@pytest.mark.parametrize("hosts", [2, 3, 8])
@pytest.mark.parametrize("segments", [1, 4])
@pytest.mark.parametrize("latency_ps", [0, 300_000, 5_000_000])
def test_a_ring_of_equal_hosts_takes_the_time_of_its_frames(
    hosts: int, segments: int, latency_ps: int
) -> None:
    one = ring(hosts, segments)
    framing = Framing(header_bytes=64, packet_bytes=1448, packet_overhead_bytes=90)
    fabric = Fabric.uniform(hosts, rate_bps=RATE, latency_ps=latency_ps, framing=framing)
    flows, frames = simulate_flows(one, fabric), simulate_collective(one, fabric)
    assert flows.ended_ps == frames.ended_ps
    assert flows.sent_bytes == frames.sent_bytes
    assert flows.flows == 2 * (hosts - 1) * hosts


@pytest.mark.parametrize("seed", range(12))
def test_a_ring_of_whole_chunks_on_different_hosts_takes_the_time_of_its_frames(seed: int) -> None:
    """Draw latencies and starts: with one segment in a chunk, a port has no choice."""
    random = Random(seed)
    hosts = random.randint(2, 9)
    fabric = Fabric(
        hosts=tuple(
            Host(rates_bps=(RATE,), latency_ps=random.randint(0, 3_000_000)) for _ in range(hosts)
        )
    )
    starts = [random.randint(0, 20_000_000) for _ in range(hosts)]
    one = ring(hosts, 1)
    flows = simulate_flows(one, fabric, starts_ps=starts)
    assert flows.ended_ps == simulate_collective(one, fabric, starts_ps=starts).ended_ps


def test_half_the_rate_of_one_host_doubles_the_time_of_all() -> None:
    one = ring(6, 8)
    fast, slow = Host(rates_bps=(RATE,)), Host(rates_bps=(RATE // 2,))
    even = simulate_flows(one, Fabric(hosts=(fast,) * 6)).duration_ps
    uneven = simulate_flows(one, Fabric(hosts=(fast, fast, slow, fast, fast, fast))).duration_ps
    assert even == 10 * 8 * SEGMENT * BYTE_PS
    assert 2 * even - 2 * 8 * SEGMENT * BYTE_PS <= uneven <= 2 * even


def test_one_host_more_adds_its_two_steps() -> None:
    latency_ps = 10**6
    seven, eight = (
        simulate_flows(ring(n, 1), Fabric.uniform(n, rate_bps=RATE, latency_ps=latency_ps))
        for n in (7, 8)
    )
    step_ps = SEGMENT * BYTE_PS + 2 * latency_ps
    assert (seven.duration_ps, eight.duration_ps) == (12 * step_ps, 14 * step_ps)


@pytest.mark.parametrize(("hosts", "per_host"), [(2, 2), (4, 3), (8, 4), (1, 4)])
def test_a_hierarchy_is_within_a_tenth_of_its_frames(hosts: int, per_host: int) -> None:
    host = Host(
        rates_bps=(RATE,),
        latency_ps=200_000,
        cores=per_host,
        memory_bytes_per_second=4 * 10**9,
        memory_latency_ps=50_000,
    )
    one = Operation(
        plan=hierarchical(hosts, per_host),
        count=hosts * per_host * 4 * SEGMENT,
        segment_bytes=SEGMENT,
    )
    flows = simulate_flows(one, Fabric(hosts=(host,) * hosts), ranks_per_host=per_host)
    frames = simulate_alike(one, Fabric(hosts=(host,)), ranks_per_host=per_host)
    assert flows.duration_ps == pytest.approx(frames.duration_ps, rel=0.1)
    assert flows.sent_bytes == frames.sent_bytes * hosts


def test_no_flow_undercuts_the_bytes_of_its_port() -> None:
    for seed in range(30):
        random = Random(seed)
        hosts, per_host = random.randint(2, 7), random.randint(1, 4)
        fabric = Fabric(
            hosts=tuple(
                Host(
                    rates_bps=(random.randint(1, 40) * 10**8,), latency_ps=random.randint(0, 10**6)
                )
                for _ in range(hosts)
            )
        )
        one = Operation(plan=hierarchical(hosts, per_host), count=hosts * per_host * 1600)
        run = simulate_flows(one, fabric, ranks_per_host=per_host)
        slowest_bps = min(host.rates_bps[0] for host in fabric.hosts)
        assert run.duration_ps >= 8 * 10**12 * run.sent_bytes[0] // slowest_bps


@pytest.mark.parametrize(
    ("plan", "hosts", "changes", "said"),
    [
        (
            generate(Collective.ALL_REDUCE, "mesh", 3),
            3,
            {},
            "all_reduce mesh, 3 ranks is no ring of hosts; the plans hierarchical, ring are",
        ),
        (
            generate(Collective.ALL_REDUCE, "ring", 4),
            2,
            {"ranks_per_host": 2},
            "flows simulate the plan ring with one rank on each host, not 2; take the plan "
            "hierarchical",
        ),
        (
            hierarchical(2, 2),
            2,
            {"ranks_per_host": 3},
            "ranks_per_host must be a divisor of 4 ranks, not 3",
        ),
        (
            hierarchical(2, 2),
            3,
            {"ranks_per_host": 2},
            "all_reduce hierarchical, 4 ranks needs 2 hosts, not 3",
        ),
        (
            hierarchical(2, 2),
            2,
            {"ranks_per_host": 2, "starts_ps": (0, -1)},
            "starts_ps must have 2 times of at least 0, not (0, -1)",
        ),
    ],
)
def test_what_flows_cannot_do_is_refused(
    plan: object, hosts: int, changes: dict[str, object], said: str
) -> None:
    operation = Operation(plan=plan, count=64)  # type: ignore[arg-type]
    with pytest.raises(UsageError) as raised:
        simulate_flows(operation, Fabric.uniform(hosts, rate_bps=RATE), **changes)  # type: ignore[arg-type]
    assert str(raised.value) == said


def test_flows_refuse_token_buckets() -> None:
    hosts = (Host(rates_bps=(RATE,)), Host(rates_bps=(RATE,), burst_bytes=9))
    message = r"^flows have no token bucket: burst_bytes of host 1 must be 0, not 9$"
    with pytest.raises(UsageError, match=message):
        simulate_flows(ring(2, 1), Fabric(hosts=hosts))


def test_flows_refuse_bytes_ahead_and_shared_cores() -> None:
    hosts = (Host(rates_bps=(RATE,)), Host(rates_bps=(RATE,), ahead_bytes=9))
    message = r"^flows have no queues of NICs: ahead_bytes of host 1 must be 0, not 9$"
    with pytest.raises(UsageError, match=message):
        simulate_flows(ring(2, 1), Fabric(hosts=hosts))
    with pytest.raises(UsageError, match=r"^hosts of flows share no cores: shared_cores is 2$"):
        simulate_flows(ring(2, 1), Fabric(hosts=hosts[:1] * 2, shared_cores=2))
