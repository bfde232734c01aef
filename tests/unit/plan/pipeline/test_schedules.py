"""Tests of the schedules in the literature."""

import pytest

from slackline.errors import UsageError
from slackline.plan.pipeline import (
    PipelinePlan,
    Scenario,
    adaptra_adapted,
    adaptra_initial,
    adaptra_plan,
    check,
    dual_pipe_v,
    generate,
    gpipe,
    interleaved_1f1b,
    names,
    one_f_one_b,
    replay,
    zb_h1,
    zb_h2,
    zb_v,
    zero_bubble,
)

SIZES = [(1, 1), (1, 3), (2, 1), (2, 5), (3, 4), (4, 2), (4, 12), (8, 24)]


def texts(plan: PipelinePlan) -> list[str]:
    return [" ".join(order) for order in plan.orders()]


def test_gpipe_runs_all_forwards_first() -> None:
    assert texts(gpipe(2, 2)) == ["F0 F1 B0 W0 B1 W1"] * 2
    assert texts(gpipe(1, 2, full_backward=True)) == ["F0 F1 BW0 BW1"]


def test_1f1b_has_one_more_in_flight_on_each_stage_above() -> None:
    assert texts(one_f_one_b(2, 3)) == [
        "F0 F1 B0 W0 F2 B1 W1 B2 W2",
        "F0 B0 W0 F1 B1 W1 F2 B2 W2",
    ]


@pytest.mark.parametrize(("stages", "count"), SIZES)
def test_every_schedule_is_complete_and_free_of_deadlock(stages: int, count: int) -> None:
    plans = [gpipe(stages, count), one_f_one_b(stages, count), zb_h1(stages, count)]
    plans += [zb_h2(stages, count), zero_bubble(stages, count)]
    plans += [gpipe(stages, count, full_backward=True)]
    plans += [zb_v(2 * stages, count), dual_pipe_v(2 * stages, count)]
    plans += [dual_pipe_v(2 * stages, count, full_backward=True)]
    assert [str(check(plan)) for plan in plans] == ["None"] * len(plans)


@pytest.mark.parametrize(("stages", "count"), [(2, 5), (4, 12), (8, 24)])
def test_each_schedule_takes_the_time_that_is_known_of_it(stages: int, count: int) -> None:
    unit = Scenario.uniform(stages, count)
    for plan in (zb_h1(stages, count), zb_h2(stages, count), zero_bubble(stages, count)):
        assert replay(plan, unit).makespan_ps == 3 * count + stages - 1
    whole = one_f_one_b(stages, count, full_backward=True)
    assert replay(whole, unit).makespan_ps == 3 * (count + stages - 1)
    whole = gpipe(stages, count, full_backward=True)
    assert replay(whole, unit).makespan_ps == 3 * (count + stages - 1)


@pytest.mark.parametrize(("stages", "count"), [(2, 5), (4, 12), (8, 24)])
def test_each_schedule_holds_what_is_known_of_it(stages: int, count: int) -> None:
    def peaks(plan: PipelinePlan) -> list[int]:
        timing = replay(plan, Scenario.uniform(plan.stages, count))
        return [int(each) for each in timing.peak_activations]

    assert peaks(gpipe(stages, count)) == [count] * stages
    assert peaks(one_f_one_b(stages, count)) == list(range(stages, 0, -1))
    assert peaks(zb_h1(stages, count)) == [stages] * stages
    assert peaks(zb_h2(stages, count)) == [2 * stages - 1] * stages
    for plan in (zb_v(2 * stages, count), dual_pipe_v(2 * stages, count)):
        both = peaks(plan)
        assert max(a + b for a, b in zip(both, reversed(both), strict=True)) <= 2 * stages + 1


def test_dualpipe_v_pairs_forwards_of_one_stage_with_backwards_of_the_other() -> None:
    plan = dual_pipe_v(4, 4, full_backward=True)
    assert plan.placement == (0, 1, 1, 0)
    assert texts(plan) == [
        "0F0 0F1 0F2 3F0 3B0 3W0 3F1 0F3 3BW1 3F2 0BW0 3BW2 3F3 0BW1 3BW3 0B2 0W2 0B3 0W3",
        "1F0 2F0 1F1 2F1 1F2 2BW0 2F2 1BW0 1F3 2BW1 2F3 1BW1 2BW2 1BW2 2B3 1B3 2W3 1W3",
    ]
    split = dual_pipe_v(4, 4)
    assert texts(split)[1].startswith("1F0 2F0 1F1 2F1 1F2 2B0 2W0 2F2 1B0 1W0 1F3 2B1 2W1")


def test_interleaved_1f1b_goes_round_the_ranks() -> None:
    plan = interleaved_1f1b(4, 2, full_backward=True)
    assert plan.placement == (0, 1, 0, 1)
    assert texts(plan) == [
        "0F0 0F1 2F0 2F1 2BW0 2BW1 0BW0 0BW1",
        "1F0 1F1 3F0 3BW0 3F1 3BW1 1BW0 1BW1",
    ]
    with pytest.raises(UsageError) as error:
        interleaved_1f1b(4, 5)
    assert str(error.value) == (
        "interleaved 1F1B over 2 ranks needs microbatches in 2 equal rounds, not 5"
    )


def test_stages_that_cannot_be_shared_out_are_refused() -> None:
    for make in (
        lambda: interleaved_1f1b(5, 4),
        lambda: zb_v(5, 4),
        lambda: dual_pipe_v(5, 4),
    ):
        with pytest.raises(UsageError, match=r"^5 stages cannot be divided into 2 for each rank$"):
            make()


def test_adaptra_spreads_what_fits_as_evenly_as_possible() -> None:
    assert adaptra_initial(4, 7) == (7, 5, 3, 1)
    assert adaptra_initial(4, 8) == (8, 6, 4, 1)
    assert adaptra_initial(4, 4) == (4, 3, 2, 1)
    assert adaptra_initial(4, 2) == (2, 2, 2, 1)
    assert adaptra_initial(1, 9) == (1,)


def test_adaptra_adapts_as_published() -> None:
    scenario = Scenario.uniform(4, 20, (10, 10, 10)).delayed(2, 60)
    # Link 2 needs ceil((20 + 120) / 20) = 7, the other links 2; N - 2 S = 12.
    assert adaptra_adapted(scenario) == (12, 10, 8, 1)
    # Forwards that are ready before the first B arrives continue after the warm-up.
    assert [order.index("B0") for order in adaptra_plan(scenario).orders()] == [19, 17, 15, 1]


def test_adaptra_keeps_its_initial_plan_while_the_delay_is_tolerated() -> None:
    healthy = Scenario.uniform(4, 12, (10, 10, 10), cap=7)
    assert texts(adaptra_plan(healthy.delayed(0, 10))) == texts(adaptra_plan(healthy))
    assert texts(adaptra_plan(healthy.delayed(0, 11))) != texts(adaptra_plan(healthy))
    assert texts(adaptra_plan(healthy)) == texts(zero_bubble(4, 12))


def test_a_schedule_that_does_not_fit_says_where() -> None:
    with pytest.raises(UsageError) as error:
        generate("zb-h2", Scenario.uniform(4, 12, cap=4))
    assert str(error.value).splitlines() == [
        "zb-h2, 4 stages, 12 microbatches: stage 0, F4: needs 5 activations, but the cap is 4.",
        "It holds up to 7, 7, 7, 7 activations on stages 0 to 3: such caps would fit; the "
        "schedules auto and ready keep within any cap.",
    ]
    with pytest.raises(UsageError) as error:
        generate("interleaved", Scenario.uniform(8, 8, cap=2))
    assert str(error.value).splitlines() == [
        "interleaved, 8 stages on 4 ranks, 8 microbatches: stage 4, F0: needs 5 activations, but "
        "the cap is 4.",
        "It holds up to 11, 9, 7, 5 activations on ranks 0 to 3: such caps would fit; the "
        "schedules auto and ready keep within any cap.",
    ]
    with pytest.raises(UsageError) as error:
        generate("gpipe", Scenario.uniform(1, 3, cap=2))
    assert str(error.value).splitlines()[1] == (
        "It holds up to 3 activations: such a cap would fit; the schedules auto and ready keep "
        "within any cap."
    )
    with pytest.raises(UsageError, match=r'^there is no schedule "best"; schedules are auto, '):
        generate("best", Scenario.uniform(1, 1))
    assert names()[:4] == ("auto", "ready", "slack", "adaptra")
