"""Tests of cuts of models into stages, on clusters whose hosts differ."""

import itertools
import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from partition_clusters import SEED, draw, draw_small
from partition_exhaustive import every_cut, exhaustive_ps

from slackline.errors import UsageError
from slackline.plan.partition import (
    Cluster,
    Cut,
    Host,
    Layer,
    Link,
    Profile,
    evaluate,
    even_cut,
    parse_model,
    partition,
)
from slackline.plan.partition._bound import shortest
from slackline.plan.partition._cut import Costs
from slackline.plan.pipeline import check
from slackline.sim import Channel, Network, simulate

MS, MIB, GIB = 10**9, 1 << 20, 1 << 30
SLOW = pytest.mark.slow


def layer(name: str = "block", ms: int = 10, **change: Any) -> Layer:
    plain = Layer(
        name=name,
        forward_ps=ms * MS,
        backward_input_ps=ms * MS,
        backward_weight_ps=ms * MS,
        output_bytes=MIB,
        parameter_bytes=MIB,
        activation_bytes=MIB,
    )
    return replace(plain, **change)


def even(count: int) -> Profile:
    return Profile(layers=(layer(),) * count)


def one_host(devices: int, **change: Any) -> Cluster:
    return Cluster(hosts=(Host(name="a", devices=devices, **change),))


def drawn(make: Any, seed: int) -> tuple[Profile, Cluster, int, int]:
    found, stages, microbatches = make(seed)
    model = parse_model(json.dumps(found), "drawn.json")
    assert model.profile is not None
    assert model.cluster is not None
    return model.profile, model.cluster, stages, microbatches


def test_equal_devices_get_equal_stages() -> None:
    found = partition(even(8), one_host(4), None, 12)
    assert found.cut == Cut((0, 2, 4, 6, 8), (0, 0, 0, 0))
    assert [each.device for each in found.stages] == [0, 1, 2, 3]
    # Zero bubble of 4 stages of 20 ms: 3 N + S - 1 of them.
    assert found.iteration_ps == found.lower_bound_ps == 20 * MS * (3 * 12 + 3)
    assert found.any_cut
    assert found.gap == 0


def test_a_device_of_twice_the_speed_gets_twice_the_layers() -> None:
    hosts = (Host(name="slow"), Host(name="fast", speed=Fraction(2)))
    cluster = Cluster(hosts=hosts, between=Link(rate_bps=10**12))
    found = partition(even(9), cluster, None, 64)
    sizes = {each.host: each.end - each.first for each in found.stages}
    assert sizes == {"slow": 3, "fast": 6}
    assert check(found.plan, found.scenario) is None


def test_a_cut_avoids_large_outputs_and_slow_links() -> None:
    narrow = [layer(str(number), output_bytes=256 * MIB) for number in range(6)]
    narrow[2] = layer("narrow", output_bytes=MIB)
    profile = Profile(layers=tuple(narrow))
    hosts = tuple(Host(name=name) for name in "ab")
    found = partition(profile, Cluster(hosts=hosts, between=Link(rate_bps=10**10)), 2, 16)
    assert found.cut.bounds == (0, 3, 6)
    assert found.scenario.forward_delay_ps == (8 * MIB * 100,)  # 8 bits a byte, 100 ps a bit


def test_memory_decides_where_a_large_layer_stands() -> None:
    big = layer("big", parameter_bytes=GIB)
    profile = Profile(layers=(layer(), layer(), layer(), big))
    hosts = (Host(name="large", memory_bytes=6 * GIB), Host(name="small", memory_bytes=GIB))
    cluster = Cluster(hosts=hosts, between=Link(rate_bps=10**12))
    found = partition(profile, cluster, 2, 4)
    assert found.stages[1].host == "large"
    for each in found.stages:
        assert each.memory.cap is not None
        assert each.peak_bytes <= each.memory.cap
    with pytest.raises(UsageError, match=r"^stage 1 \(layers 2 to 3\) needs 4\.01 GiB with one "):
        evaluate(profile, cluster, Cut((0, 2, 4), (0, 1)), 4)


def test_a_model_that_fits_nowhere_is_refused_with_its_largest_layer() -> None:
    profile = Profile(layers=(layer(), layer("big", parameter_bytes=GIB)))
    with pytest.raises(UsageError) as error:
        partition(profile, one_host(2, memory_bytes=GIB), 2, 4)
    assert str(error.value) == (
        "no cut into 2 stages was found in which every stage fits its device with one activation: "
        "the layers need 4.01 GiB, layer 'big' alone 4 GiB, and the largest device has 1 GiB"
    )


def test_the_time_of_a_slow_link_bounds_the_iteration() -> None:
    profile = Profile(layers=(layer(output_bytes=125 * MIB),) * 2)
    cluster = Cluster(hosts=(Host(name="a"), Host(name="b")), between=Link(rate_bps=10**9))
    found = partition(profile, cluster, 2, 8)
    # The link is busy for 1.048576 s with each of 8 messages, one after the other.
    assert found.iteration_ps >= 8 * 1_048_576 * 10**6
    assert found.lower_bound_ps >= 8 * 1_048_576 * 10**6


@pytest.mark.parametrize("seed", [SEED, *(pytest.param(SEED + k, marks=SLOW) for k in range(1, 9))])
def test_the_planned_time_is_that_of_the_simulator(seed: int) -> None:
    profile, cluster, stages, microbatches = drawn(draw, seed)
    links, cut = cluster.links(), even_cut(profile, cluster, stages)
    found = evaluate(profile, cluster, cut, microbatches, effort=0.01)
    used = [links[above][below] for above, below in itertools.pairwise(cut.hosts)]
    channels = tuple(
        Channel(latency_ps=each.latency_ps, bytes_per_second=each.rate_bps // 8)
        for each in used
        if each is not None
    )
    sizes = tuple(profile.layers[place - 1].output_bytes for place in cut.bounds[1:-1])
    network = Network(forward=channels, backward=channels, message_bytes=sizes)
    assert found.iteration_ps == simulate(found.plan, found.scenario, network).makespan_ps


@pytest.mark.parametrize("seed", [SEED, *(pytest.param(SEED + k, marks=SLOW) for k in range(1, 9))])
def test_the_bound_is_the_least_of_all_cuts(seed: int) -> None:
    profile, cluster, stages, microbatches = drawn(draw_small, seed)
    costs = Costs(profile, cluster)
    best = shortest(costs, stages, microbatches, lambda stage: 1)
    assert best is not None
    assert best.exact
    least = min(
        fill_and_steady(costs, cut, microbatches)
        for cut in every_cut(profile, cluster, stages)
        if costs.fits(cut)
    )
    assert fill_and_steady(costs, best.cut, microbatches) == least == best.lower_bound_ps


def fill_and_steady(costs: Costs, cut: Cut, microbatches: int) -> int:
    """Return the bound that the module `_bound` defines, from the scenario of the cut."""
    scenario = costs.scenario(cut, microbatches)
    fill = most = 0
    for stage in range(cut.stages):
        work = scenario.forward_ps[stage] + scenario.backward_input_ps[stage]
        work += scenario.backward_weight_ps[stage]
        most = max(most, fill + microbatches * work)
        fill += scenario.forward_ps[stage]
        if stage + 1 < cut.stages:
            busy = costs.busy_ps(cut.hosts[stage], cut.hosts[stage + 1], cut.bounds[stage + 1])
            most = max(most, fill + microbatches * busy)
            fill += scenario.forward_delay_ps[stage]
    return most


@pytest.mark.parametrize(
    "seed", [SEED + 1, *(pytest.param(SEED + k, marks=SLOW) for k in (0, 2, 3, 4))]
)
def test_a_small_case_is_within_a_hundredth_of_an_exhaustive_search(seed: int) -> None:
    profile, cluster, stages, microbatches = drawn(draw_small, seed)
    found = partition(profile, cluster, stages, microbatches)
    assert found.lower_bound_ps <= found.iteration_ps
    assert found.iteration_ps <= 1.01 * exhaustive_ps(profile, cluster, stages, microbatches)


@pytest.mark.parametrize(
    "seed", [SEED, *(pytest.param(SEED + k, marks=SLOW) for k in range(1, 20))]
)
def test_a_mixed_cluster_is_never_slower_than_with_an_even_cut(seed: int) -> None:
    profile, cluster, stages, microbatches = drawn(draw, seed)
    found = partition(profile, cluster, stages, microbatches, effort=0.05)
    cut = even_cut(profile, cluster, stages)
    assert (
        found.iteration_ps
        <= evaluate(profile, cluster, cut, microbatches, effort=0.05).iteration_ps
    )
    assert found.lower_bound_ps <= found.iteration_ps
    assert check(found.plan, found.scenario) is None
    used = [(each.host, each.device) for each in found.stages]
    assert len(set(used)) == stages
    assert [each.first for each in found.stages[1:]] == [each.end for each in found.stages[:-1]]
    assert (found.stages[0].first, found.stages[-1].end) == (0, len(profile.layers))


def test_the_same_model_gives_the_same_partition() -> None:
    profile, cluster, stages, microbatches = drawn(draw_small, SEED + 3)
    first, second = (
        partition(profile, cluster, stages, microbatches, effort=0.1) for _ in range(2)
    )
    assert first == second


def test_an_even_cut_gives_the_first_stages_one_layer_more() -> None:
    hosts = (Host(name="a", devices=2), Host(name="b", devices=2))
    cluster = Cluster(hosts=hosts, between=Link(rate_bps=10**9))
    assert even_cut(even(8), cluster, 3) == Cut((0, 3, 6, 8), (0, 0, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stages": 0}, "stages must be a positive integer, not 0"),
        ({"stages": 3}, "3 stages need at least 3 layers; there are 2"),
        ({"stages": 2, "devices": 1}, "2 stages need at least 2 devices; there are 1"),
        ({"microbatches": 0}, "microbatches must be a positive integer, not 0"),
        ({"effort": 0}, "effort must be positive and finite, not 0"),
    ],
)
def test_a_wrong_number_is_refused(change: dict[str, Any], message: str) -> None:
    asked = {"stages": 2, "microbatches": 4, "effort": 1.0, "devices": 4} | change
    with pytest.raises(UsageError) as error:
        partition(
            even(2),
            one_host(asked["devices"]),
            asked["stages"],
            asked["microbatches"],
            effort=asked["effort"],
        )
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (
            Cut((0, 2, 2), (0, 0)),
            "bounds of 2 stages must be 3 increasing numbers, not (0, 2, 2)",
        ),
        (Cut((0, 1, 3), (0, 0)), "bounds must go from 0 to 4, not (0, 1, 3)"),
        (Cut((0, 1, 4), (0, 1)), "hosts must be from 0 to 0, not 1"),
        (Cut((0, 1, 2, 4), (0, 0, 0)), "3 stages need at least 3 devices; there are 2"),
    ],
)
def test_a_wrong_cut_is_refused(cut: Cut, message: str) -> None:
    with pytest.raises(UsageError) as error:
        evaluate(even(4), one_host(2), cut, 4)
    assert str(error.value) == message


def test_hosts_that_are_alike_do_not_multiply_the_search() -> None:
    hosts = tuple(Host(name=str(number), devices=1) for number in range(16))
    cluster = Cluster(hosts=hosts, between=Link(rate_bps=10**11))
    best = shortest(Costs(even(200), cluster), 16, 32, lambda stage: 1)
    assert best is not None
    assert best.exact
    sizes = [end - first for first, end in itertools.pairwise(best.cut.bounds)]
    assert sum(sizes) == 200
    assert max(sizes) == 13
