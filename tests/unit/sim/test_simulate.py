"""Tests of the simulator against manual calculations, the plan's own arithmetic and list
scheduling."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackline.errors import InternalError, UsageError
from slackline.faults import parse_all
from slackline.plan.pipeline import (
    Instruction,
    PipelinePlan,
    Scenario,
    StageMemory,
    dual_pipe_v,
    generate,
    gpipe,
    one_f_one_b,
    ready_plan,
    replay,
    zb_v,
    zero_bubble,
)
from slackline.sim import Channel, Network, Run, simulate

MS = 10**9
EVEN = Scenario.uniform(4, 12, (10 * MS,) * 3)


def drawn(seed: int) -> Scenario:
    random = Random(seed)
    stages = random.randint(1, 6)

    def values(count: int, low: int, high: int) -> tuple[int, ...]:
        return tuple(random.randint(low, high) for _ in range(count))

    return Scenario(
        microbatches=random.randint(1, 9),
        forward_ps=values(stages, 1, 9),
        backward_input_ps=values(stages, 1, 9),
        backward_weight_ps=values(stages, 1, 9),
        forward_delay_ps=values(stages - 1, 0, 30),
        backward_delay_ps=values(stages - 1, 0, 30),
        memory=(StageMemory.of_microbatches(random.randint(1, 9)),) * stages,
    )


def trace(run: Run) -> list[list[tuple[str, int, int]]]:
    return [[(str(s.instruction), s.start_ps, s.end_ps) for s in spans] for spans in run.spans]


@pytest.mark.parametrize(("delay_ms", "total_ms"), [(0, 390), (10, 400), (20, 440)])
def test_the_published_iteration_times_come_out_exactly(delay_ms: int, total_ms: int) -> None:
    run = simulate(zero_bubble(4, 12), EVEN.delayed(0, delay_ms * MS))
    assert run.makespan_ps == total_ms * MS


@settings(max_examples=settings.default.max_examples * 3 // 5)
@given(st.integers(0, 10**6), st.sampled_from(["1f1b", "gpipe", "zb-h2", "slack", "ready"]))
def test_a_fixed_order_takes_the_time_that_the_plan_says(seed: int, name: str) -> None:
    scenario = drawn(seed)
    if name in ("1f1b", "gpipe", "zb-h2"):
        scenario = scenario.capped([None] * scenario.stages)
    plan = generate(name, scenario)
    timing, run = replay(plan, scenario), simulate(plan, scenario)
    assert run.makespan_ps == timing.makespan_ps
    assert run.bubble_share == timing.bubble_share
    assert run.peak_activations == timing.peak_activations
    assert [tuple(s.start_ps for s in spans) for spans in run.spans] == list(timing.start_ps)


@settings(max_examples=settings.default.max_examples * 3 // 5)
@given(st.integers(0, 10**6))
def test_readiness_finds_the_order_of_the_ready_plan(seed: int) -> None:
    scenario = drawn(seed)
    plan = ready_plan(scenario)
    unlimited = scenario.capped([None] * scenario.stages)
    any_plan = generate("gpipe", unlimited)
    assert trace(simulate(any_plan, scenario, order="ready")) == trace(simulate(plan, scenario))


@pytest.mark.parametrize("make", [zb_v, dual_pipe_v])
def test_readiness_runs_several_stages_a_rank(make: Callable[[int, int], PipelinePlan]) -> None:
    scenario = Scenario.uniform(8, 6, (10, 10, 10), cap=2).delayed(2, 25)
    run = simulate(make(8, 6), scenario, order="ready")
    assert max(run.peak_activations) <= 2
    assert sum(map(len, run.spans)) == 3 * 8 * 6


def test_readiness_keeps_to_a_quota_in_flight() -> None:
    run = simulate(gpipe(4, 12), EVEN, order="ready", in_flight=(4, 3, 2, 1))
    flying = most = 0
    for span in run.spans[0]:
        flying += {"F": 1, "B": -1}.get(span.instruction.kind, 0)
        most = max(most, flying)
    assert most == 4


def test_weights_come_in_microbatch_order_whatever_the_network_does() -> None:
    channel = Channel(latency_ps=5 * MS, jitter_ps=40 * MS)
    network = Network(forward=(channel,) * 3, backward=(channel,) * 3, seed=7)
    run = simulate(gpipe(4, 12), EVEN.capped([6] * 4), network, order="ready")
    for spans in run.spans:
        weights = [s.instruction.microbatch for s in spans if s.instruction.kind == "W"]
        assert weights == list(range(12))


def test_one_seed_gives_one_trace() -> None:
    def run(seed: int) -> Run:
        channel = Channel(latency_ps=MS, jitter_ps=30 * MS)
        network = Network(forward=(channel,) * 3, backward=(channel,) * 3, seed=seed)
        return simulate(zero_bubble(4, 12), EVEN, network, order="ready")

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_a_rate_lets_messages_leave_one_by_one() -> None:
    scenario = Scenario.uniform(2, 3, (10, 10, 10))
    # At 1e11 bytes/s 4 bytes take 40 ps: sent at 10, 20, 30; transmitted at 50, 90, 130; received 5
    # later.
    slow = Channel(latency_ps=5, bytes_per_second=10**11)
    network = Network(forward=(slow,), backward=(Channel(),), message_bytes=(4,))
    run = simulate(gpipe(2, 3), scenario, network)
    assert [s.start_ps for s in run.spans[1]][:3] == [55, 95, 135]


def test_a_later_message_does_not_overtake() -> None:
    scenario = Scenario.uniform(2, 2, (10, 10, 10))
    # F0 leaves at 10 with a latency of 100, F1 at 20 with none; both arrive at 110.
    network = Network.of(scenario).changing(0, [(0, 100), (15, 0)], "forward")
    run = simulate(gpipe(2, 2), scenario, network)
    assert [s.start_ps for s in run.spans[1]][:2] == [110, 120]


def test_delays_change_over_time_in_the_direction_that_is_named() -> None:
    scenario = Scenario.uniform(2, 1, (10, 10, 10))
    network = Network.of(scenario).changing(0, [(25, 50)])
    # F0 leaves at 10, before the change; the gradient leaves at 30, after it.
    run = simulate(gpipe(2, 1), scenario, network)
    assert [s.start_ps for s in run.spans[0]] == [0, 80, 90]
    forward_only = Network.of(scenario).changing(0, [(5, 50)], "forward")
    assert simulate(gpipe(2, 1), scenario, forward_only).spans[1][0].start_ps == 60


def test_behind_a_blocked_send_ready_work_waits() -> None:
    scenario = Scenario.uniform(2, 3, (10, 10, 10)).delayed(0, 30, 0)
    network = Network.of(scenario)
    free = simulate(gpipe(2, 3), scenario, network)
    assert [s.start_ps for s in free.spans[0]][:3] == [0, 10, 20]
    blocking = Network(
        forward=network.forward, backward=network.backward, head_of_line=True, queue_depth=1
    )
    run = simulate(gpipe(2, 3), scenario, blocking)
    # F0 is in flight until 40. The send of F1 at 20 waits for that, so F2 starts at 40. The send of
    # F2 is due at 50, when the message of F1, sent at 20, has also arrived.
    assert [s.start_ps for s in run.spans[0]][:3] == [0, 10, 40]
    assert run.blocked_ps == (20, 0)


def test_a_serial_channel_carries_one_message_at_a_time() -> None:
    scenario = Scenario.uniform(2, 3, (10, 10, 10)).delayed(0, 30, 0)
    network = Network.of(scenario)
    run = simulate(gpipe(2, 3), scenario, network)
    assert [s.start_ps for s in run.spans[1]][:3] == [40, 50, 60]
    run = simulate(gpipe(2, 3), scenario, replace(network, serial=True))
    # F0 leaves at 10; F1 and F2 each leave when the message before them has arrived.
    assert [s.start_ps for s in run.spans[1]][:3] == [40, 70, 100]
    assert run.blocked_ps == (0, 0)


def test_directions_of_a_half_duplex_link_take_turns() -> None:
    scenario = Scenario.uniform(2, 2, (10, 10, 10)).delayed(0, 30)
    network = replace(Network.of(scenario), serial=True)
    plan = one_f_one_b(2, 2)

    def first_backward(network: Network) -> int:
        spans = simulate(plan, scenario, network).spans[0]
        return next(s.start_ps for s in spans if str(s.instruction) == "0B0")

    # B0 of stage 1 ends at 60, while F1 is on the link from 40 to 70.
    assert first_backward(network) == 90
    assert first_backward(replace(network, half_duplex=True)) == 100


def test_with_a_queue_of_0_a_rank_waits_for_each_of_its_sends() -> None:
    scenario = Scenario.uniform(2, 2, (10, 10, 10)).delayed(0, 30, 0)
    network = replace(Network.of(scenario), head_of_line=True, queue_depth=0)
    run = simulate(gpipe(2, 2), scenario, network)
    assert [s.start_ps for s in run.spans[0]][:2] == [0, 40]
    assert run.blocked_ps == (60, 0)


def test_a_negative_queue_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^queue_depth must be at least 0, not -1$"):
        replace(Network.of(Scenario.uniform(2, 2)), queue_depth=-1)


def test_blocking_sends_make_1f1b_wait_longer() -> None:
    scenario = EVEN.delayed(0, 30 * MS)
    network = Network.of(scenario)
    blocking = Network(forward=network.forward, backward=network.backward, head_of_line=True)
    plan = zero_bubble(4, 12)
    assert simulate(plan, scenario).makespan_ps == 500 * MS
    assert simulate(plan, scenario, blocking).makespan_ps > 500 * MS


def test_faults_become_delays() -> None:
    scenario = Scenario.uniform(3, 1, (MS, MS, MS))
    faults = parse_all("link 1>2 delay 30ms from 2ms for 5ms; link 0-1 delay 4ms")
    network = Network.of(scenario).with_faults(faults, until_ps=100 * MS)
    assert network.forward[0].latency_at(0) == 4 * MS
    assert [network.forward[1].latency_at(at * MS) for at in (1, 2, 6, 7)] == [
        0,
        30 * MS,
        30 * MS,
        0,
    ]
    assert network.backward[1].latency_at(3 * MS) == 0
    with pytest.raises(UsageError, match=r'^the simulator can add only delays, not "loss 1%"$'):
        Network.of(scenario).with_faults(parse_all("link 0-1 loss 1%"), until_ps=MS)


def test_what_does_not_belong_together_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^the plan has 4 stages, the scenario 2$"):
        simulate(gpipe(4, 2), Scenario.uniform(2, 2))
    with pytest.raises(UsageError, match=r"^4 stages need 3 links, not 1$"):
        simulate(gpipe(4, 12), EVEN, Network(forward=(Channel(),), backward=(Channel(),)))
    with pytest.raises(UsageError, match=r"^changes must be in order of time, not at \[5, 2\]$"):
        Channel(changes=((5, 1), (2, 1)))
    with pytest.raises(
        UsageError, match=r'^order must be "fixed", "ready" or "planned", not "free"$'
    ):
        simulate(gpipe(4, 12), EVEN, order="free")  # type: ignore[arg-type]


def test_a_plan_with_a_cycle_is_reported_and_does_not_hang() -> None:
    programs = ("0F0 0BW0 0F1 0BW1", "1F0 1F1 1BW0 1BW1")
    plan = PipelinePlan(
        name="cycle",
        microbatches=2,
        placement=(0, 1),
        programs=tuple(tuple(map(Instruction.parse, each.split())) for each in programs),
    )
    with pytest.raises(InternalError, match=r"^rank 0 waits for ever to start 0BW0$"):
        simulate(plan, Scenario.uniform(2, 2))


def test_a_full_backward_frees_and_sends_at_its_end() -> None:
    scenario = Scenario.uniform(2, 2, (10, 20, 5), cap=1)
    run = simulate(one_f_one_b(2, 2, full_backward=True), scenario, order="ready")
    assert trace(run)[0] == [("0F0", 0, 10), ("0BW0", 45, 70), ("0F1", 70, 80), ("0BW1", 115, 140)]
