"""Tests of the straggler benchmark's arithmetic: critical paths, random delays, the length of the
trace."""

from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType

import pytest
from benchmark_modules import modules_of

from slackline.faults import parse_all
from slackline.testing.timed_stage import Wait


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """Provide the benchmark's modules by name."""
    with modules_of(
        "pipeline-straggler", "cases", "computing", "own_cost", "path", "replay"
    ) as found:
        yield found


def test_all_of_an_iteration_lies_on_its_critical_path(benchmark: ModuleType) -> None:
    ranks = [
        [Wait("F", 3, 13, 14), Wait("B", 99, 109, 110), Wait("W", 112, 122, 122)],
        [Wait("F", 46, 56, 57), Wait("B", 58, 68, 68), Wait("W", 68, 78, 78)],
    ]
    found = benchmark.path.critical_path(ranks, 0, 125, {0: 30})
    assert found.computing_ns == 5 * 10 + 2 * 30
    assert found.waking_ns == 1 + 1 + 1
    assert found.messages_ns == (46 - 14 - 30) + (99 - 68 - 30)
    assert found.turning_ns == 3 + (58 - 57) + (112 - 110) + (125 - 122)
    assert (found.turns, found.hops) == (3, 2)
    assert found.total_ns == 125


def test_a_backward_pass_of_one_piece_needs_its_gradient_at_its_begin(
    benchmark: ModuleType,
) -> None:
    ranks = [
        [Wait("F", 0, 10, 10), Wait("W", 50, 60, 60), Wait("B", 60, 70, 70)],
        [Wait("F", 15, 25, 25), Wait("W", 25, 35, 35), Wait("B", 35, 45, 45)],
    ]
    found = benchmark.path.critical_path(ranks, 0, 70, {0: 5})
    assert (found.computing_ns, found.messages_ns, found.hops) == (70, 0, 2)


def test_drawn_delays_are_the_same_for_everyone_and_change_every_50_to_100_ms(
    benchmark: ModuleType,
) -> None:
    cases = benchmark.cases
    case = next(case for case in cases.CASES if case.redrawn)
    (link,) = case.redrawn
    steps = case.steps(link)
    assert steps == case.steps(link)
    lengths = [after - before for (before, _), (after, _) in pairwise(steps)]
    assert min(lengths) >= 50
    assert max(lengths) <= 100
    assert {delay for _, delay in steps} == {0, *cases.DELAYS_MS}
    plan = parse_all(case.faults(40))
    for (begin, delay), length in zip(steps, lengths, strict=False):
        middle_ns = (40 + begin + length // 2) * 1_000_000
        effects = plan.pairs(middle_ns).get((link, link + 1))
        assert (0 if effects is None else effects.delay_ns) == delay * 1_000_000


def test_the_replayed_trace_keeps_the_proportions_of_the_recorded_one(
    benchmark: ModuleType,
) -> None:
    replay = benchmark.replay
    assert sum(phase.iterations for phase in replay.phases(scale=1)) == replay.ITERATIONS
    slow = [phase for phase in replay.phases() if not phase.case.healthy]
    assert len(slow) == len(replay.EVENTS)
    assert {phase.iterations for phase in slow} == {replay.LASTS // replay.SCALE}
    assert [phase.nic_fails for phase in replay.phases()].count(True) == 1


def test_torchs_best_is_compared_round_by_round_and_the_fastest_row_stands_first(
    benchmark: ModuleType,
) -> None:
    computing = benchmark.computing
    setting = computing.SETTINGS[0]
    slow, fast = (each.name for each in computing.CONTESTANTS[:2])
    times = {slow: (30.0, 30.0, 30.0), fast: (9.0, 19.0, 8.0), computing.AUTO: (10.0, 20.0, 10.0)}
    found = computing.Computed()
    for name, wall_ms in times.items():
        found.steps[setting, name] = computing.Steps(wall_ms=wall_ms, processor_ms=wall_ms)
    assert found.ratio(setting) == 0.9
    assert [row.labels["contestant"] for row in found.rows()] == [fast, computing.AUTO, slow]
    assert [(each.measured, each.met) for each in found.targets()[:2]] == [
        (0.9, False),
        (None, None),
    ]


def test_the_own_cost_is_that_of_the_rank_on_which_a_computation_costs_most(
    benchmark: ModuleType,
) -> None:
    own_cost = benchmark.own_cost

    def rank(*own_us: float):
        return own_cost.Measured(
            own_us=own_us, process_us=own_us, plain_us=(30.0,), calls=100.26, switches=0.514
        )

    found = own_cost.OwnCost(ranks=(rank(90.0, 100.0, 500.0), rank(120.0, 151.0, 160.0)))
    assert [(each.measured, each.met) for each in found.targets()] == [(151.0, False)]
    assert [(each.measured, each.met) for each in own_cost.OwnCost().targets()] == [(None, None)]
    assert found.rows()[0].values == {
        "own_us": 100.0,
        "own_p10_us": 92.0,
        "process_us": 100.0,
        "plain_us": 30.0,
        "calls": 100.3,
        "switches": 0.51,
    }


def test_a_rank_measures_the_cost_of_a_pipeline_whose_stages_do_nothing(
    benchmark: ModuleType,
) -> None:
    with benchmark.own_cost.Ranks(
        benchmark.own_cost.Idler, 2, environment=benchmark.own_cost.ENVIRONMENT
    ) as ranks:
        found = ranks.ask("measure", 3)
        ranks.ask("close")
    for each in found:
        assert len(each.own_us) == len(each.process_us) == len(each.plain_us) == 3
        assert each.calls > 10
