"""Tests of simulated training steps: overlap, exposed time, and lower bounds."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackline.errors import UsageError
from slackline.faults import parse_all
from slackline.plan.collective import Collective, generate
from slackline.sim import (
    Fabric,
    Host,
    Layer,
    Operation,
    Policy,
    StepTimes,
    TrainingRun,
    form_groups,
    simulate_training,
)

US = 10**6
POLICIES: tuple[Policy, ...] = ("overlap", "buckets", "after")


def all_reduce(ranks: int, name: str = "ring", **changes: int) -> Callable[[int], Operation]:
    plan = generate(Collective.ALL_REDUCE, name, ranks)
    return lambda nbytes: Operation(plan=plan, count=nbytes // 4, **changes)


def layers(*sizes: int, forward_ps: int = 10 * US, backward_ps: int = 20 * US) -> list[Layer]:
    return [
        Layer(forward_ps=forward_ps, backward_ps=backward_ps, gradient_bytes=size) for size in sizes
    ]


def two_hosts(byte_ps: int = 1000) -> Fabric:
    """Return two hosts with two cores each, so that the engine does not delay computations."""
    host = Host(rates_bps=(8 * 10**12 // byte_ps,), cores=2)
    return Fabric(hosts=(host, host))


def trained(model: list[Layer], policy: Policy, **changes: object) -> TrainingRun:
    return simulate_training(
        model,
        two_hosts(),
        all_reduce(2),
        steps=2,
        policy=policy,
        **changes,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("policy", "sizes", "group_bytes", "launches"),
    [("overlap", (4, 4, 4), 0, 3), ("buckets", (4, 4, 4), 8, 2), ("after", (4, 0, 0), 0, 2)],
)
def test_a_rank_computes_nothing_while_it_begins_an_operation(
    policy: Policy, sizes: tuple[int, ...], group_bytes: int, launches: int
) -> None:
    model = layers(*sizes)
    run = trained(model, policy, group_bytes=group_bytes, launch_ps=7 * US)
    free = trained(model, policy, group_bytes=group_bytes)
    assert run.step_ps[0] - free.step_ps[0] == launches * 7 * US


def test_a_launch_delays_the_gradient_that_it_sends() -> None:
    run = trained(layers(1000), "overlap", launch_ps=7 * US)
    free = trained(layers(1000), "overlap")
    # One layer of 30 us: its all_reduce starts 7 us after the backward pass.
    assert free.backward_ps[1][0] - free.backward_ps[0][0] == 30 * US + free.exposed_ps[0][0]
    assert run.backward_ps[1][0] - run.backward_ps[0][0] == 37 * US + free.exposed_ps[0][0]
    assert run.exposed_ps == free.exposed_ps


@pytest.mark.parametrize("policy", POLICIES)
def test_without_gradients_a_step_is_its_computation(policy: Policy) -> None:
    run = trained(layers(0, 0, 0), policy)
    assert run.backward_ps == ((90 * US,) * 2, (180 * US,) * 2)
    assert run.ended_ps == (180 * US,) * 2
    assert run.exposed_ps == ((0, 0), (0, 0))
    assert run.step_ps == (90 * US,)


def test_after_backward_the_whole_communication_is_exposed() -> None:
    """Let two ranks exchange as many bytes as the gradients have: 8000, 8 us."""
    run = trained(layers(4096, 4096), "after")
    assert run.exposed_ps == ((8192 * 1000,) * 2,) * 2
    assert run.step_ps == (60 * US + 8192 * 1000,)


def test_buckets_expose_the_last_gradient() -> None:
    """Reduce the gradient of layer 1 during the backward pass of layer 0."""
    run = trained(layers(4096, 4096), "buckets")
    assert run.exposed_ps == ((4096 * 1000,) * 2,) * 2


def test_a_step_that_waits_for_all_is_late_where_one_that_waits_for_its_own_is_not() -> None:
    """Let layer 1's 64 us of gradient outlast the backward pass of layer 0 by 44 us."""
    model = layers(0, 64 * 1024, 64)
    buckets, overlap = trained(model, "buckets"), trained(model, "overlap")
    behind_ps = 64 * 1024 * 1000 - 20 * US
    assert buckets.exposed_ps[0] == (behind_ps,) * 2
    # The next forward pass of layer 0 needs nothing and takes 10 us of that time.
    assert overlap.exposed_ps[0] == (behind_ps - 10 * US,) * 2


def test_buckets_update_nothing_before_all_gradients_are_there() -> None:
    """Wait for the gradient of layer 1, although that of layer 0 comes sooner, by another NIC."""
    model = layers(64, 64 * 1024)
    model[0] = replace(model[0], optimizer_ps=10 * US)
    host = Host(rates_bps=(8 * 10**9,) * 2, cores=2)
    run = simulate_training(
        model,
        Fabric(hosts=(host, host)),
        all_reduce(2, "direct", segment_bytes=64 * 1024),
        steps=2,
        policy="buckets",
    )
    behind_ps = 64 * 1024 * 1000 - 20 * US
    assert run.exposed_ps[0] == (behind_ps,) * 2
    assert run.step_ps == (60 * US + behind_ps + 10 * US,)


def test_the_gradient_that_is_needed_first_overtakes_those_before_it() -> None:
    """Send layer 1's long gradient in segments of 4 KiB, which that of layer 0 overtakes."""
    model = [
        Layer(forward_ps=10 * US, backward_ps=5 * US, gradient_bytes=4096),
        Layer(forward_ps=10 * US, backward_ps=5 * US, gradient_bytes=1 << 20),
    ]
    reduce = all_reduce(2, segment_bytes=4096)
    urgent, in_turn = (
        simulate_training(model, two_hosts(), reduce, steps=2, policy=policy)
        for policy in ("overlap", "buckets")
    )
    # Both wait for all bytes in the end; the forward pass of layer 0 is hidden behind them.
    assert in_turn.step_ps[0] - urgent.step_ps[0] == 10 * US
    without = simulate_training(
        model, two_hosts(), all_reduce(2, segment_bytes=1 << 20), steps=2, policy="overlap"
    )
    # A frame that is being sent is not interrupted: layer 0 waits for the whole of layer 1.
    assert without.step_ps[0] > urgent.step_ps[0]


def test_ranks_wait_for_a_slow_one() -> None:
    run = trained(layers(128, 128), "after", faults=parse_all("rank 1 slow 2x"))
    assert run.step_ps == (120 * US + 256 * 1000,)
    assert [exposed[0] for exposed in run.exposed_ps] == [60 * US + 256 * 1000] * 2


def test_a_thread_shares_its_core_with_the_engine() -> None:
    """Delay the computation by the engine's 7 us a frame on one core, and not on two."""
    times = []
    for cores in (1, 2):
        host = Host(rates_bps=(8 * 10**9,), cores=cores, frame_ps=7 * US)
        model = layers(0, 64 * 1024, 64 * 1024, 64 * 1024)
        fabric = Fabric(hosts=(host, host))
        run = simulate_training(model, fabric, all_reduce(2), steps=3, policy="overlap")
        times.append(run.ended_ps[0])
    assert times[0] > times[1]


@settings(max_examples=settings.default.max_examples * 2 // 5)
@given(
    sizes=st.lists(st.integers(0, 40).map(lambda lines: 64 * lines), min_size=1, max_size=5),
    policy=st.sampled_from(POLICIES),
    name=st.sampled_from(("ring", "mesh", "direct", "reduce-broadcast", "star")),
    group_bytes=st.sampled_from((0, 256, 10**6)),
)
def test_a_step_is_no_shorter_than_its_computation_or_its_bytes(
    sizes: list[int], policy: Policy, name: str, group_bytes: int
) -> None:
    model = layers(*sizes, forward_ps=100, backward_ps=300)
    host = Host(rates_bps=(8 * 10**9,), cores=2, latency_ps=50)
    fabric = Fabric(hosts=(host,) * 4)
    run = simulate_training(
        model, fabric, all_reduce(3, name), steps=3, policy=policy, group_bytes=group_bytes
    )
    assert run.ended_ps[0] >= 3 * sum(layer.compute_ps for layer in model)
    port_bytes = sum(sizes) * 4 // 3 if name != "star" else sum(sizes)
    assert run.ended_ps[0] >= 3 * port_bytes * 1000
    assert run == simulate_training(
        model, fabric, all_reduce(3, name), steps=3, policy=policy, group_bytes=group_bytes
    )


def test_groups_are_neighbours_up_to_a_size() -> None:
    model = layers(100, 100, 300, 50, 50, 120)
    assert form_groups(model, 200) == ((0, 1), (2,), (3, 4), (5,))
    assert form_groups(model, 0) == ((0,), (1,), (2,), (3,), (4,), (5,))
    assert form_groups(model, 10**6) == ((0, 1, 2, 3, 4, 5),)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"steps": 0}, "steps must be a positive integer, not 0"),
        ({"policy": "never"}, "policy must be one of overlap, buckets, after, not 'never'"),
        ({"group_bytes": -1}, "group_bytes must be at least 0, not -1"),
        ({"launch_ps": -1}, "launch_ps must be at least 0, not -1"),
        ({"layers": []}, "a model must have at least one layer"),
    ],
)
def test_wrong_values_are_refused(given: dict[str, object], said: str) -> None:
    call: dict[str, object] = {
        "layers": layers(64),
        "fabric": two_hosts(),
        "all_reduce": all_reduce(2),
        **given,
    }
    with pytest.raises(UsageError) as raised:
        simulate_training(**call)  # type: ignore[arg-type]
    assert str(raised.value) == said


def test_a_layer_has_no_negative_time() -> None:
    with pytest.raises(UsageError) as raised:
        Layer(forward_ps=-1, backward_ps=0, gradient_bytes=0)
    assert str(raised.value) == "forward_ps must be at least 0, not -1"


def test_ranks_and_steps_may_have_computations_of_their_own() -> None:
    """Let rank 1 compute 50 us longer in step 1, for which rank 0 waits."""

    def times(rank: int, step: int) -> StepTimes:
        more_ps = 50 * US if (rank, step) == (1, 1) else 0
        return StepTimes(forward_ps=(10 * US + more_ps,), backward_ps=(20 * US,))

    run = trained(layers(0), "overlap", times=times)
    assert run.backward_ps[0] == (30 * US, 30 * US)
    assert [late - early for early, late in zip(*run.backward_ps, strict=True)] == [
        30 * US,
        80 * US,
    ]
    assert run.exposed_ps[1] == (50 * US, 0)


def test_a_rank_computes_before_and_after_its_passes_without_waiting() -> None:
    """Hide the 30 us of a reduction behind the 25 us and 15 us between two steps."""
    times = StepTimes(
        before_ps=25 * US, forward_ps=(10 * US,), backward_ps=(20 * US,), after_ps=15 * US
    )
    run = trained(layers(30 * 1024), "overlap", times=lambda rank, step: times)
    assert run.backward_ps == ((55 * US,) * 2, (125 * US,) * 2)
    assert run.exposed_ps[0] == (0, 0)
    assert run.reductions_ps[0] == (((55 * US, 55 * US + 30 * 1024 * 1000),),) * 2


def test_a_step_lasts_as_long_as_its_layers_say_without_times_of_its_own() -> None:
    same = StepTimes(forward_ps=(10 * US,) * 2, backward_ps=(20 * US,) * 2)
    plain = trained(layers(4096, 4096), "overlap")
    given = trained(layers(4096, 4096), "overlap", times=lambda rank, step: same)
    assert replace(given, events=plain.events) == plain


def test_times_must_have_a_duration_of_each_layer() -> None:
    with pytest.raises(UsageError) as caught:
        trained(
            layers(4, 4),
            "overlap",
            times=lambda rank, step: StepTimes(forward_ps=(1,), backward_ps=(1, 1)),
        )
    assert str(caught.value) == "times(0, 0) must have 2 durations of each pass, not 1 and 2"
    with pytest.raises(UsageError) as caught:
        StepTimes(forward_ps=(1,), backward_ps=(-3,))
    assert str(caught.value) == "every duration of a step must be at least 0, not -3"
