"""Replicas of a pipeline: the pipeline's own time, then what its network and its gradients add."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackline.errors import UsageError
from slackline.faults import parse_all
from slackline.plan.collective import Collective, generate
from slackline.plan.pipeline import Scenario, one_f_one_b
from slackline.sim import (
    Fabric,
    Host,
    HybridRun,
    Network,
    Operation,
    simulate,
    simulate_hybrid,
)

MS = 10**9
BYTE_PS = 1000
EVEN = Scenario.uniform(3, 4, (2 * MS, 2 * MS, 2 * MS))


def fabric(hosts: int, *, latency_ps: int = 0) -> Fabric:
    host = Host(rates_bps=(8 * 10**9,), cores=2, latency_ps=latency_ps)
    return Fabric(hosts=(host,) * hosts)


def run(
    replicas: int,
    *,
    message: int = 0,
    gradient: int = 0,
    scenario: Scenario = EVEN,
    **changes: object,
) -> HybridRun:
    return simulate_hybrid(
        one_f_one_b(3, 4),
        scenario,
        **{  # type: ignore[arg-type]
            "fabric": fabric(3 * replicas),
            "replicas": replicas,
            "message_bytes": (message,) * 2,
            "gradient_bytes": (gradient,) * 3,
            **changes,
        },
    )


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_on_a_free_network_every_replica_takes_the_time_of_its_pipeline(replicas: int) -> None:
    alone = simulate(one_f_one_b(3, 4), EVEN)
    found = run(replicas)
    assert found.pipelines == (alone,) * replicas
    assert found.makespan_ps == alone.makespan_ps


def test_the_latency_of_a_path_is_the_delay_of_a_link() -> None:
    """Send messages without bytes on cables of 1 ms: delays of 2 ms each way."""
    delayed = EVEN.delayed(0, 2 * MS).delayed(1, 2 * MS)
    found = run(2, fabric=fabric(6, latency_ps=MS))
    assert found.pipelines == (simulate(one_f_one_b(3, 4), delayed),) * 2


def test_a_rank_that_blocks_computes_nothing_until_its_message_has_arrived() -> None:
    delayed = EVEN.delayed(0, 2 * MS).delayed(1, 2 * MS)
    network = replace(Network.of(delayed), head_of_line=True, queue_depth=0)
    alone = simulate(one_f_one_b(3, 4), delayed, network)
    assert min(alone.blocked_ps) > 0
    assert run(2, fabric=fabric(6, latency_ps=MS), blocking=True).pipelines == (alone,) * 2


def test_a_stage_is_reduced_as_soon_as_its_replicas_have_its_gradient() -> None:
    """Reduce the last stage of 1F1B, which ends first, while the others still compute."""
    nbytes = 1 << 20
    found = run(2, gradient=nbytes)
    ends = [spans[-1].end_ps for spans in found.pipelines[0].spans]
    assert ends[2] < ends[1] < ends[0]
    assert found.reduced_ps == tuple(end + nbytes * BYTE_PS for end in ends)
    assert found.makespan_ps == ends[0] + nbytes * BYTE_PS


def test_a_message_is_sent_before_a_gradient_that_waits() -> None:
    """Place stages 1 and 2 on one host: stage 2's gradients meet stage 1's last message there."""
    scenario = replace(EVEN, backward_weight_ps=(2 * MS, 2 * MS, MS))
    quiet, busy = (
        run(
            2,
            fabric=fabric(4),
            placement=(0, 1, 1, 2, 3, 3),
            message=4096,
            gradient=gradient,
            scenario=scenario,
        )
        for gradient in (0, 8 << 20)
    )
    late_ps = busy.pipelines[0].makespan_ps - quiet.pipelines[0].makespan_ps
    frame_ps = (128 << 10) * BYTE_PS
    assert 0 < late_ps <= frame_ps, "a message waits for no more than the frame under way"


def test_a_slow_rank_slows_its_replica_and_the_others_wait_for_its_gradient() -> None:
    alone = run(2)
    slow = run(2, faults=parse_all("rank 0 slow 2x"))
    assert slow.pipelines[1] == alone.pipelines[1]
    assert slow.pipelines[0].makespan_ps > alone.pipelines[0].makespan_ps
    assert slow.reduced_ps[0] == slow.pipelines[0].makespan_ps


def test_both_replicas_may_share_their_hosts() -> None:
    """Place two ranks on each host; its two cores compute side by side."""
    shared = run(2, fabric=fabric(3), placement=(0, 1, 2, 0, 1, 2))
    assert shared.pipelines == run(2).pipelines


@settings(max_examples=settings.default.max_examples // 4)
@given(st.integers(0, 4096), st.integers(0, 1 << 16), st.integers(1, 3), st.integers(0, MS))
def test_a_network_never_makes_a_pipeline_faster(
    message: int, gradient: int, replicas: int, latency_ps: int
) -> None:
    alone = simulate(one_f_one_b(3, 4), EVEN).makespan_ps
    on = fabric(3 * replicas, latency_ps=latency_ps)
    found = run(replicas, message=message, gradient=gradient, fabric=on)
    assert found.makespan_ps >= alone
    assert found == run(replicas, message=message, gradient=gradient, fabric=on)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"replicas": 0}, "replicas must be a positive integer, not 0"),
        ({"message_bytes": (1,)}, "message_bytes must have 2 sizes, not 1"),
        ({"gradient_bytes": (1, -2, 3)}, "every size in gradient_bytes must be at least 0, not -2"),
        ({"placement": (0,)}, "placement must have 6 hosts, not 1"),
        (
            {"scenario": EVEN.delayed(0, MS)},
            "messages cross the fabric, so all delays of the scenario must be 0",
        ),
        (
            {"plan": one_f_one_b(4, 4)},
            "the plan has 4 stages, the scenario 3",
        ),
        (
            {
                "all_reduce": lambda nbytes: Operation(
                    plan=generate(Collective.ALL_REDUCE, "ring", 3), count=nbytes // 4
                )
            },
            "all_reduce ring, 3 ranks must have 2 members, as many as replicas",
        ),
    ],
)
def test_wrong_values_are_refused(given: dict[str, object], said: str) -> None:
    call: dict[str, object] = {
        "plan": one_f_one_b(3, 4),
        "scenario": EVEN,
        "fabric": fabric(6),
        "replicas": 2,
        "message_bytes": (0, 0),
        "gradient_bytes": (0, 0, 0),
        **given,
    }
    with pytest.raises(UsageError) as raised:
        simulate_hybrid(**call)  # type: ignore[arg-type]
    assert str(raised.value) == said


@pytest.mark.parametrize("replicas", [2, 3, 5])
@pytest.mark.parametrize("name", ["ring", "mesh"])
@pytest.mark.parametrize("per_host", [1, 3])
def test_one_replica_stands_for_all(replicas: int, name: str, per_host: int) -> None:
    """Compare one replica with all of them, on hosts with as many ranks each."""
    host = Host(
        rates_bps=(8 * 10**9,),
        cores=2 * per_host,
        latency_ps=MS // 100,
        frame_ps=700,
        reduce_bytes_per_second=5 * 10**9,
        memory_bytes_per_second=10**10,
    )
    ranks = 3 * replicas
    gradients = 64 * replicas * 500
    plan = generate(Collective.ALL_REDUCE, name, replicas)
    common = {
        "message": 300_000,
        "replicas": replicas,
        "gradient": gradients,
        "all_reduce": lambda nbytes: Operation(plan=plan, count=nbytes // 4, segment_bytes=4096),
    }
    whole = run(
        **common,
        fabric=Fabric(hosts=(host,) * (ranks // per_host)),
        placement=[rank // per_host for rank in range(ranks)],
    )
    one = run(
        **common,
        fabric=Fabric(hosts=(host,) * (3 // per_host)),
        placement=[rank // per_host for rank in range(3)],
        alike=True,
    )
    assert one.pipelines == whole.pipelines[:1]
    assert one.reduced_ps == whole.reduced_ps
    assert one.makespan_ps == whole.makespan_ps
    assert one.sent_bytes * replicas == whole.sent_bytes


def test_replicas_with_faults_are_not_alike() -> None:
    with pytest.raises(UsageError) as raised:
        run(2, fabric=fabric(3), alike=True, faults=parse_all("rank 0 slow 2x"))
    assert str(raised.value) == "alike replicas must not have faults, not rank 0 slow 2x"


def test_alike_replicas_share_no_cores() -> None:
    with pytest.raises(UsageError, match=r"^alike replicas share no cores: shared_cores is 2$"):
        run(2, fabric=replace(fabric(3), shared_cores=2), alike=True)
