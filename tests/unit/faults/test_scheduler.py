"""Tests of a fault plan on a clock that the caller passes in, and of the states of its network."""

import pytest

from slackline.faults import (
    NOTHING,
    Effects,
    NetworkState,
    PlanState,
    RankState,
    Scheduler,
    parse_all,
)

DOWN = Effects(down=True)
MS = 10**6
ORIGIN_NS = 7 * MS
"""The time of the caller's clock at which plans start here."""


def scheduler(text: str) -> Scheduler:
    """Return a scheduler whose clock runs from ORIGIN_NS on."""
    made = Scheduler(parse_all(text))
    made.start(ORIGIN_NS)
    return made


def test_the_clock_stands_at_zero_until_it_is_started() -> None:
    made = Scheduler(parse_all("nic 0.0 down for 1ms; rank 1 stop from 2ms"))
    for now_ns in (0, 5 * MS):
        state = made.advance(now_ns)
        assert state.network == NetworkState(nics={(0, 0): DOWN})
        assert (state.at_ns, state.ranks, state.next_ns, state.over) == (0, {}, None, False)
        assert not made.started
    made.start(ORIGIN_NS)
    made.start(ORIGIN_NS + MS)
    assert made.started
    assert made.advance(ORIGIN_NS).next_ns == ORIGIN_NS + MS


def test_a_state_holds_until_the_time_of_the_next_change() -> None:
    made = scheduler("link 0>1 down from 20ms for 20ms; rank 1 stop from 30ms for 20ms")
    stopped = {1: RankState(action="stop")}
    for at_ms, pairs, ranks, next_ms, over in (
        (0, {}, {}, 20, False),
        (20, {(0, 1): DOWN}, {}, 30, False),
        (29, {(0, 1): DOWN}, {}, 30, False),
        (30, {(0, 1): DOWN}, stopped, 40, False),
        (40, {}, stopped, 50, False),
        (50, {}, {}, None, True),
    ):
        assert made.advance(ORIGIN_NS + at_ms * MS) == PlanState(
            at_ns=at_ms * MS,
            network=NetworkState(pairs=pairs),
            ranks=ranks,
            left_out=(),
            next_ns=None if next_ms is None else ORIGIN_NS + next_ms * MS,
            over=over,
        )


def test_a_caller_that_is_late_learns_each_fault_that_it_left_out_once() -> None:
    made = scheduler("nic 1.0 down from 2ms for 1ms; link 0>1 down from 4ms; rank 0 kill from 3ms")
    made.advance(ORIGIN_NS)
    late = made.advance(ORIGIN_NS + 5 * MS)
    assert late.left_out == (made.plan.faults[0],)
    assert late.network == NetworkState(pairs={(0, 1): DOWN})
    assert late.ranks == {0: RankState(action="kill")}
    assert made.advance(ORIGIN_NS + 6 * MS).left_out == ()


def test_a_fault_of_time_zero_is_left_out_if_the_first_look_is_late() -> None:
    made = scheduler("link 0>1 down for 1ms")
    assert made.advance(ORIGIN_NS + MS).left_out == made.plan.faults


def test_a_caller_that_takes_the_changes_in_turn_leaves_no_fault_out() -> None:
    made = scheduler("link 0>1 down from 1ms for 1ns; nic 0.0 flap 2ms from 1ms for 5ms")
    states = [made.advance(ORIGIN_NS)]
    while (next_ns := states[-1].next_ns) is not None:
        states.append(made.advance(next_ns))
    assert [(state.at_ns, bool(state.network.nics), state.over) for state in states] == [
        (0, False, False),
        (MS, True, False),
        (MS + 1, True, False),
        (3 * MS, False, False),
        (5 * MS, True, False),
        (6 * MS, False, True),
    ]
    assert [bool(state.network.pairs) for state in states] == [False, True, *[False] * 4]
    assert not any(state.left_out for state in states)


@pytest.mark.parametrize(
    ("text", "over"),
    [("", True), ("link 0-1 down", False), ("rank 0 kill", True), ("nic 0.0 flap 1ms", False)],
)
def test_a_plan_is_over_once_all_of_its_faults_are_over(text: str, over: bool) -> None:
    assert scheduler(text).advance(ORIGIN_NS).over is over


ON_A_WAY = {
    "link 0-1 delay 3ms": Effects(delay_ns=3 * MS),
    "link 1>0 delay 3ms": NOTHING,
    "link 0>1 loss 1%": Effects(loss=0.01),
    "link 2-1 down": NOTHING,
    "nic 0.1 down": DOWN,
    "nic 0.0 down": NOTHING,
    "nic 1.0 rate 8Mbit": Effects(rate_bps=8_000_000),
    "link 0-1 delay 3ms; nic 0.1 delay 1ms": Effects(delay_ns=4 * MS),
    "link 0-1 down from 1s": NOTHING,
    "rank 0 kill": NOTHING,
}


@pytest.mark.parametrize("text", ON_A_WAY)
def test_a_way_has_the_effects_of_its_link_and_of_both_nics(text: str) -> None:
    assert parse_all(text).network(0).on((0, 1), (1, 0)) == ON_A_WAY[text]


def test_the_states_of_two_plans_add_up() -> None:
    one = parse_all("link 0>1 delay 10ms; nic 0.0 down").network(0)
    other = parse_all("link 0>1 delay 5ms; nic 1.0 down").network(0)
    assert one | other == NetworkState(
        pairs={(0, 1): Effects(delay_ns=15 * MS)}, nics={(0, 0): DOWN, (1, 0): DOWN}
    )
