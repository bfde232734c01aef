"""Tests that one simulated host, which stands for all, has the times of all hosts."""

import pytest

from slackline.errors import UsageError
from slackline.plan.collective import (
    Collective,
    CollectivePlan,
    Instruction,
    Kind,
    generate,
    hierarchical,
)
from slackline.sim import (
    Fabric,
    Framing,
    Host,
    Operation,
    Symbols,
    simulate_alike,
    simulate_collective,
)
from slackline.sim._rotation import Rotation

BYTE_PS = 1000
HOST = Host(
    rates_bps=(8 * 10**9,),
    latency_ps=3_000,
    cores=8,
    frame_ps=700,
    reduce_bytes_per_second=5 * 10**9,
    memory_bytes_per_second=10**10,
    memory_latency_ps=900,
)
FRAMING = Framing(header_bytes=64, packet_bytes=1448, packet_overhead_bytes=90)

PLANS = [
    *(
        generate(Collective.ALL_REDUCE, name, ranks)
        for name in ("ring", "mesh", "direct")
        for ranks in (2, 3, 5)
    ),
    *(generate(Collective.REDUCE_SCATTER, name, 4) for name in ("ring", "mesh")),
    *(generate(Collective.ALL_GATHER, name, 4) for name in ("ring", "mesh")),
]
SHAPES = [(2, 1), (1, 3), (2, 2), (3, 2), (2, 3), (4, 4)]


def alike(plan: CollectivePlan, ranks_per_host: int) -> None:
    """Check that renumbering the hosts maps each program to another, and leaves the times equal."""
    rotation = Rotation.of(plan, ranks_per_host)
    for rank in range(plan.ranks):
        turned = [_turned(rotation, instruction) for instruction in plan.programs[rank]]
        assert turned == list(plan.programs[rotation.turned(rank, 1)])
    operation = Operation(plan=plan, count=plan.chunks * 16 * 8, segment_bytes=128)
    hosts = plan.ranks // ranks_per_host
    whole = simulate_collective(
        operation,
        Fabric(hosts=(HOST,) * hosts, framing=FRAMING),
        placement=[rank // ranks_per_host for rank in range(plan.ranks)],
    )
    one = simulate_alike(
        operation, Fabric(hosts=(HOST,), framing=FRAMING), ranks_per_host=ranks_per_host
    )
    assert one.ended_ps == whole.ended_ps[:ranks_per_host]
    assert one.duration_ps == whole.duration_ps
    assert one.messages * hosts == whole.messages
    assert one.sent_bytes * hosts == whole.sent_bytes
    assert one.received_bytes * hosts == whole.received_bytes


def _turned(rotation: Rotation, each: Instruction) -> Instruction:
    chunk = rotation.turned(each.chunk, 1) if rotation.turns_chunks else each.chunk
    peer = each.peer if each.kind is Kind.REDUCE_ALL else rotation.turned(each.peer, 1)
    return Instruction(each.kind, peer, chunk, each.last)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_one_rank_stands_for_all(plan: CollectivePlan) -> None:
    alike(plan, 1)


@pytest.mark.parametrize(("hosts", "per_host"), SHAPES)
def test_one_host_stands_for_all(hosts: int, per_host: int) -> None:
    alike(hierarchical(hosts, per_host), per_host)


def test_within_hosts_a_hierarchy_pays_for_one_rank_a_host() -> None:
    """Send 2 (p - 1) / p S from each of 4 hosts with 4 ranks, where the ring of 16 sends more."""
    hosts, per_host, segment = 4, 4, 1024
    host = Host(rates_bps=(8 * 10**9,))
    operation = Operation(
        plan=hierarchical(hosts, per_host), count=16 * segment // 4, segment_bytes=segment
    )
    run = simulate_alike(operation, Fabric(hosts=(host,)), ranks_per_host=per_host)
    nbytes = 16 * segment
    assert run.sent_bytes == (2 * (hosts - 1) * nbytes // hosts,)
    assert run.duration_ps == 2 * (hosts - 1) * nbytes // hosts * BYTE_PS
    # Ranks 3, 7, 11 and 15 of a ring send over the network, and everything to one neighbour.
    ring = Operation(
        plan=generate(Collective.ALL_REDUCE, "ring", 16),
        count=16 * segment // 4,
        segment_bytes=segment,
    )
    flat = simulate_collective(
        ring, Fabric(hosts=(host,) * hosts), placement=[rank // 4 for rank in range(16)]
    )
    assert flat.sent_bytes == (2 * 15 * nbytes // 16,) * hosts


def test_a_hierarchy_adds_every_contribution_once() -> None:
    operation = Operation(plan=hierarchical(3, 2), count=6 * 16)
    fabric = Fabric(hosts=(HOST,) * 3)
    run = simulate_collective(operation, fabric, placement=(0, 0, 1, 1, 2, 2), arithmetic=Symbols())
    for chunk in range(6):
        (value,) = {values[chunk] for values in run.values}
        assert sorted(value[0].replace("(", "").replace(")", "").split(" + ")) == [
            "x0",
            "x1",
            "x2",
            "x3",
            "x4",
            "x5",
        ]


def test_a_thousand_hosts_take_the_time_of_the_theory() -> None:
    """Expect 2 (n - 1) frames in a row, with one latency each, from a ring of 1000 hosts."""
    ranks = 1000
    host = Host(rates_bps=(8 * 10**9,), latency_ps=500_000)
    operation = Operation(plan=hierarchical(ranks, 1), count=ranks * 16)
    run = simulate_alike(operation, Fabric(hosts=(host,)))
    assert run.duration_ps == 2 * (ranks - 1) * (64 * BYTE_PS + 10**6)


@pytest.mark.parametrize(
    ("name", "ranks", "per_host", "count", "hosts", "said"),
    [
        (
            "halving-doubling",
            4,
            1,
            64,
            1,
            "the ranks of all_reduce halving-doubling, 4 ranks are not alike; plans with alike "
            "ranks: direct, hierarchical, mesh, ring",
        ),
        ("ring", 4, 3, 64, 1, "ranks_per_host must be a divisor of 4 ranks, not 3"),
        ("ring", 4, 1, 64, 2, "the fabric must have one host for all, not 2 hosts"),
        (
            "ring",
            4,
            1,
            80,
            1,
            "all chunks must be equal, not of 16 to 32 elements: 80 elements are cut into 4 chunks",
        ),
    ],
)
def test_ranks_that_are_not_alike_are_refused(
    name: str, ranks: int, per_host: int, count: int, hosts: int, said: str
) -> None:
    operation = Operation(plan=generate(Collective.ALL_REDUCE, name, ranks), count=count)
    with pytest.raises(UsageError) as raised:
        simulate_alike(operation, Fabric(hosts=(HOST,) * hosts), ranks_per_host=per_host)
    assert str(raised.value) == said


def test_alike_hosts_share_no_cores() -> None:
    fabric = Fabric(hosts=(Host(rates_bps=(8 * 10**9,)),), shared_cores=2)
    operation = Operation(plan=generate(Collective.ALL_REDUCE, "ring", 4), count=64)
    with pytest.raises(UsageError, match=r"^alike hosts share no cores: shared_cores is 2$"):
        simulate_alike(operation, fabric)
