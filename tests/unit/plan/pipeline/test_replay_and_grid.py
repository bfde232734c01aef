from fractions import Fraction

from slackline.plan.pipeline import (
    Scenario,
    gpipe,
    grid,
    interleaved_1f1b,
    one_f_one_b,
    replay,
    timetable,
    zero_bubble,
)

MS = 10**9


def test_the_published_iteration_times_come_out_exactly() -> None:
    """Check published figures: F = B = W = 10 ms, S = 4 stages, N = 12 microbatches, and x = 7, 5,
    3, 1 forwards before the first B. The order is the same for every link delay."""
    plan, even = zero_bubble(4, 12), Scenario.uniform(4, 12, (10 * MS,) * 3)
    assert [order.index("B0") for order in plan.orders()] == [7, 5, 3, 1]
    assert replay(plan, even).makespan_ps == 390 * MS
    assert replay(plan, even.delayed(0, 10 * MS)).makespan_ps == 400 * MS
    assert replay(plan, even.delayed(0, 20 * MS)).makespan_ps == 440 * MS


def test_a_message_takes_its_directions_delay_and_none_within_a_rank() -> None:
    scenario = Scenario.uniform(2, 1, (10, 20, 5)).delayed(0, 3, 7)
    timing = replay(gpipe(2, 1), scenario)
    # F runs 0-10 and arrives at 13; then F 13-23, B 23-43, W 43-48; back at 50: B 50-70, W 70-75.
    assert timing.start_ps == ((0, 50, 70), (13, 23, 43))
    assert timing.makespan_ps == 75
    looped = replay(interleaved_1f1b(2, 1), scenario)
    assert looped.end_ps == ((10, 20, 40, 45, 65, 70),)


def test_a_full_backward_gives_its_gradient_at_its_end() -> None:
    scenario = Scenario.uniform(2, 1, (10, 20, 5))
    assert replay(gpipe(2, 1, full_backward=True), scenario).start_ps == ((0, 45), (10, 20))


def test_bubbles_and_peaks_are_counted() -> None:
    timing = replay(one_f_one_b(2, 2), Scenario.uniform(2, 2))
    assert timing.makespan_ps == 8
    assert timing.bubble_share == Fraction(1, 4)
    assert timing.peak_activations == (2, 1)


def test_the_grid_has_a_column_for_each_rank() -> None:
    assert grid(one_f_one_b(2, 2)).splitlines() == [
        "     rank 0  rank 1",
        "  0  0F0     1F0",
        "  1  0F1     1B0",
        "  2  0B0     1W0",
        "  3  0W0     1F1",
        "  4  0B1     1B1",
        "  5  0W1     1W1",
    ]


def test_the_timetable_has_a_row_for_each_start() -> None:
    plan = one_f_one_b(2, 2)
    timing = replay(plan, Scenario.uniform(2, 2, (10 * MS, 20 * MS, 5 * MS)))
    assert timetable(plan, timing).splitlines() == [
        " ms  rank 0  rank 1",
        "  0  F0",
        " 10  F1      F0",
        " 20          B0",
        " 40  B0      W0",
        " 45  |       F1",
        " 55  |       B1",
        " 60  W0      |",
        " 75  B1      W1",
        " 95  W1",
    ]
