"""Tests of group sizes that are chosen by trial."""

import pytest
import torch
from torch import nn, optim

from slackline.overlap import DataParallel
from slackline.overlap.reduction.tuning._trial import (
    LENGTHS,
    WARM_UP,
    Candidate,
    Outcome,
    Trial,
    Variant,
)

FIRST = 1 << 20


def variant(size):
    return Variant(group_bytes=size)


def candidates(*sizes):
    return [Candidate(variant=variant(size), groups=100 - k) for k, size in enumerate(sizes)]


def run(trial, cost, most=200):
    """Return the group size that each training step used until the end of the trial."""
    used, group_bytes = [], FIRST
    while trial.outcome is None:
        used.append(group_bytes)
        group_bytes = trial.step(cost(group_bytes, len(used))).group_bytes
        assert len(used) <= most
    return [*used, group_bytes]


def alone(times):
    return lambda: times


def test_the_fastest_is_chosen_within_a_hundred_steps():
    sizes = (0, 256 << 10, 1 << 20, 4 << 20, 9 << 20)
    trial = Trial(candidates(*sizes), alone, first=variant(FIRST))
    cost = dict(zip(sizes, (50, 40, 20, 30, 60), strict=True))
    used = run(trial, lambda size, _: cost[size] * 1_000_000)
    assert used[-1] == trial.outcome.variant.group_bytes == 1 << 20
    assert str(trial.outcome) == (
        "groups of 1 MiB: 20 ms a step; groups of 4 MiB 30 ms; groups of 256 KiB 40 ms"
    )
    assert len(used) <= 100


def test_a_trial_of_all_variants_ends_within_130_steps():
    sizes = (0, 256 << 10, 1 << 20, 4 << 20, 9 << 20)
    together = [
        Candidate(variant=Variant(group_bytes=size, deferred=False), groups=90)
        for size in (1 << 20, 9 << 20)
    ]
    trial = Trial([*candidates(*sizes), *together], alone, first=variant(FIRST))
    steps, now = 0, variant(FIRST)
    while trial.outcome is None:
        now = trial.step(20 if now == together[0].variant else 30)
        steps += 1
    assert now == trial.outcome.variant == together[0].variant
    assert str(trial.outcome).startswith("groups of 1 MiB and one update: 20 ns a step; ")
    assert steps <= 130


def test_candidates_take_turns_between_which_the_first_groups_are_used():
    trial = Trial(candidates(0, 7), alone, first=variant(FIRST))
    used = run(trial, lambda size, _: size + 1)
    first, second = [0] * LENGTHS.turn, [7] * LENGTHS.turn
    turns = first + second + second + first + first + second + second + first + first + second
    assert used == [*[FIRST] * (WARM_UP + 1), *turns, *[FIRST] * (LENGTHS.later + 1), 0]


def test_the_first_stage_counts_in_the_second_one():
    """Check the medians of one rank, in milliseconds: 5 candidates in the first stage, and the best
    3 of them in the second stage."""
    posted = []

    def average(times):
        posted.append([time // 1_000_000 for time in times])
        return lambda: times

    sizes = (0, 1, 2, 3, 4)
    trial = Trial(candidates(*sizes), average, first=variant(FIRST))
    begun = WARM_UP + len(sizes) * LENGTHS.turns[0] * LENGTHS.turn + 1

    def cost(size, step):
        return 1_000_000 * (10 + size if step <= begun else 100 - size)

    run(trial, cost)
    # A candidate has six steps in the first stage and nine in the second, so its median is the time
    # of a step in the second stage.
    assert posted == [[10, 11, 12, 13, 14], [100, 99, 98]]
    assert [each.group_bytes for each, _ in trial.outcome.times_ns] == [2, 1, 0]


def test_four_candidates_have_two_stages_and_three_have_one():
    for count, stages in ((4, 2), (3, 1), (2, 1)):
        posted = []

        def average(times, posted=posted):
            posted.append(times)
            return lambda: times

        run(
            Trial(candidates(*range(count)), average, first=variant(FIRST)),
            lambda size, _: 1000 + 100 * size,
        )
        assert len(posted) == stages


def test_the_first_step_of_a_turn_does_not_count():
    trial = Trial(candidates(0, 7), alone, first=variant(FIRST))
    before = []

    def cost(size, _):
        fresh = not before or before[-1] != size
        before.append(size)
        return (1000 if size == 0 else 1) if fresh else (10 if size == 0 else 20)

    run(trial, cost)
    assert trial.outcome.times_ns == [(variant(0), 10), (variant(7), 20)]


def test_a_step_that_was_disturbed_does_not_decide():
    trial = Trial(candidates(0, 7), alone, first=variant(FIRST))
    run(trial, lambda size, step: 10_000 if step == WARM_UP + 3 else 10 + size)
    assert trial.outcome.variant.group_bytes == 0


def test_of_those_that_are_nearly_as_good_the_fewest_groups_win():
    trial = Trial(candidates(0, 7), alone, first=variant(FIRST))
    run(trial, lambda size, _: 1000 if size == 0 else 1019)
    assert trial.outcome.variant.group_bytes == 7


def test_the_average_of_all_ranks_decides():
    posted = []

    def average(times):
        posted.append(times)
        return lambda: [(mine + other) / 2 for mine, other in zip(times, [50, 10], strict=True)]

    trial = Trial(candidates(0, 7), average, first=variant(FIRST))
    run(trial, lambda size, _: 20 if size == 0 else 30)
    assert posted == [[20, 30]]
    assert trial.outcome.times_ns == [(variant(7), 20), (variant(0), 35)]


def test_one_candidate_needs_no_trial():
    trial = Trial(candidates(7), alone, first=variant(FIRST))
    assert run(trial, lambda *_: 1) == [FIRST] * (WARM_UP + 1) + [7]


@pytest.mark.parametrize("ranks_", [2, 3])
def test_ranks_switch_together_and_the_bits_are_those_of_one_group_each(ranks, ranks_):
    torch.manual_seed(0)
    start = [nn.Linear(8, 8).state_dict() for _ in range(3)]

    def train(group, group_bytes):
        layers = [nn.Linear(8, 8) for _ in start]
        for layer, values in zip(layers, start, strict=True):
            layer.load_state_dict(values)
        module = nn.Sequential(*layers)
        optimizer = optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
        model = DataParallel(module, optimizer, process_group=group, group_bytes=group_bytes)
        for turn in range(90):  # a trial of three candidates takes 72 steps
            seed = torch.Generator().manual_seed(100 * turn + group.rank)
            model(torch.randn(2, 8, generator=seed)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        model.synchronize()
        return model.group_bytes, [parameter.detach().clone() for parameter in module.parameters()]

    expected = ranks(ranks_, lambda group: train(group, 0))[0][1]
    found = ranks(ranks_, lambda group: train(group, None))
    assert {group_bytes for group_bytes, _ in found} < {0, 3 * (65 + 9) * 4}
    for _, mine in found:
        assert all(torch.equal(a, b) for a, b in zip(mine, expected, strict=True))


def test_the_reason_says_why_the_variant_is_not_the_fastest_one():
    times = ((variant(1 << 20), 20_200_000.0), (variant(0), 20_000_000.0))
    outcome = Outcome(variant=variant(1 << 20), times_ns=times)
    assert outcome.reason == (
        "20.2 ms a step, within 2% of the fastest and with the fewest groups; "
        "one parameter each 20 ms"
    )
