"""Tests of the decision about shares, on ports whose traffic is modelled."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackline.plan.collective import (
    WHOLE,
    Balance,
    Traffic,
    equal_shares,
    observe,
    port_rates,
    port_time,
    rebalance,
    round_pace,
    shares,
)

SLICE = 8 << 20


def traffic(rates: Sequence[int], weights: Sequence[int]) -> list[list[Traffic]]:
    """Return the traffic of a slice (8 MiB of a tensor) in a mesh. A link is as busy as the busier
    of its two ports."""
    ranks, whole = len(rates), sum(weights)
    carried = [SLICE * (1 + (ranks - 2) * weight / whole) for weight in weights]
    busy = [each / rate for each, rate in zip(carried, rates, strict=True)]
    return [
        [
            Traffic(
                nbytes=0 if i == j else SLICE * (weights[i] + weights[j]) // whole,
                busy_ns=0 if i == j else round(1e9 * max(busy[i], busy[j])),
            )
            for j in range(ranks)
        ]
        for i in range(ranks)
    ]


def ring_traffic(rates: Sequence[int]) -> list[list[Traffic]]:
    """Return the traffic of a slice (8 MiB of a tensor) in a ring. Each link is as busy as the
    slower of its ports."""
    ranks = len(rates)
    table = [[Traffic(nbytes=0, busy_ns=0)] * ranks for _ in range(ranks)]
    for i in range(ranks):
        after = (i + 1) % ranks
        nbytes = 2 * SLICE * (ranks - 1) // ranks
        busy_ns = round(1e9 * nbytes / min(rates[i], rates[after]))
        table[i][after] = Traffic(nbytes=nbytes, busy_ns=busy_ns)
    return table


def lagging(slices: int, rates: Sequence[int], balance: Balance) -> tuple[Balance, list[str]]:
    """Return the state and all reasons after a series of slices of a tensor; a decision takes
    effect three slices later."""
    plans = [balance, balance, balance]
    reasons = []
    for _ in range(slices):
        plan = plans.pop(0)
        if plan.weights is None and not plan.mesh:
            table = ring_traffic(rates)
        else:
            table = traffic(rates, plan.weights or equal_shares(len(rates)))
        balance, reason = observe(balance, table, SLICE // 2)
        plans.append(balance)
        reasons += [] if reason is None else [reason]
    return balance, reasons


def after(rounds: int, rates: Sequence[int], balance: Balance) -> Balance:
    """Return the state after `rounds` slices of a tensor at these rates."""
    for _ in range(rounds):
        weights = balance.weights or equal_shares(len(rates))
        balance, _ = rebalance(balance, port_rates(traffic(rates, weights)))
    return balance


@settings(deadline=None)
@given(st.lists(st.integers(10**7, 10**8), min_size=3, max_size=8))
def test_shares_are_never_worse_than_equal_ones(rates: list[int]) -> None:
    balance = after(10, rates, Balance(mesh=True))
    equal = equal_shares(len(rates))
    assert port_time(rates, balance.weights or equal) <= port_time(rates, equal)


@pytest.mark.parametrize("slow", range(10, 100, 5))
@pytest.mark.parametrize("ranks", [4, 5, 8])
def test_within_ten_slices_one_slow_port_comes_close_to_the_bound(ranks: int, slow: int) -> None:
    rates = [10**8] * (ranks - 1) + [slow * 10**6]
    balance = after(10, rates, Balance(mesh=True))
    taken = port_time(rates, balance.weights or equal_shares(ranks))
    assert taken <= port_time(rates, shares(rates)) * 110 / 100


@settings(deadline=None)
@given(st.integers(10**7, 10**8), st.lists(st.integers(0, 999), min_size=3, max_size=8))
def test_shares_save_less_than_the_factor_between_the_fastest_and_the_slowest_port(
    least: int, above: list[int]
) -> None:
    rates = [least + least * each // 10_000 for each in (0, *above)]
    gain = port_time(rates, equal_shares(len(rates))) / port_time(rates, shares(rates))
    assert gain < 1.1
    for mesh in (True, False):
        balance, _ = rebalance(Balance(mesh=mesh), tuple(rates))
        balance, reason = rebalance(balance, tuple(rates))
        assert (balance.weights, balance.rounds, reason) == (None, 2, None)


@pytest.mark.parametrize("low", [96, 98, 100])
def test_even_ports_keep_equal_shares(low: int) -> None:
    rates = [10**6 * each for each in (100, low, 100, 100)]
    assert after(20, rates, Balance(mesh=True)).number == 0


def test_one_odd_slice_changes_nothing() -> None:
    even, odd = [10**8] * 4, [10**8, 10**8, 2 * 10**7, 10**8]
    balance = Balance(mesh=True)
    for rates in (even, odd, even, even, odd, even):
        balance, reason = rebalance(balance, tuple(rates))
        assert reason is None
    assert balance.weights is None


def test_new_shares_come_with_a_number_and_a_reason() -> None:
    rates = (40_000_000, 40_000_000, 40_000_000, 20_000_000)
    balance, reason = rebalance(Balance(mesh=True), rates)
    assert reason is None
    balance, reason = rebalance(balance, rates)
    assert (balance.weights, balance.number) == ((21846, 21845, 21845, 0), 1)
    assert reason == (
        "the shares are 33.3%, 33.3%, 33.3%, 0%, since the ports carry 40 MB/s, "
        "40 MB/s, 40 MB/s, 20 MB/s: 33% less time than with 25%, 25%, 25%, 25%"
    )


def test_another_plan_is_first_replaced_by_a_mesh_with_equal_shares() -> None:
    rates = (40_000_000, 40_000_000, 40_000_000, 20_000_000)
    balance, _ = rebalance(Balance(mesh=False), rates)
    balance, reason = rebalance(balance, rates)
    assert (balance.weights, balance.number) == (equal_shares(4), 1)
    assert reason == (
        "the plan is mesh with equal shares from now on, since the ports seem uneven: "
        "40 MB/s, 40 MB/s, 40 MB/s, 20 MB/s"
    )
    balance = after(2, rates, balance)
    assert (balance.weights, balance.number) == (shares(rates), 2)


def judged(*rounds: tuple[int, ...]) -> tuple[Balance, list[str]]:
    """Return the state and all reasons after these rounds of measured rates under the plan ring."""
    balance, reasons = Balance(mesh=False), []
    for rates in rounds:
        balance, reason = rebalance(balance, rates)
        reasons += [] if reason is None else [reason]
    return balance, reasons


def test_a_ring_over_ports_that_seem_a_tenth_uneven_twice_is_replaced() -> None:
    # Rates in kB/s of a ring of four hosts with 200 Mbit/s, one of them with 150, as measured.
    balance, reasons = judged((17808, 14919, 14921, 20013), (16739, 16148, 16154, 18609))
    assert balance.weights == equal_shares(4)
    (reason,) = reasons
    assert reason.startswith("the plan is mesh with equal shares from now on")


@pytest.mark.parametrize(
    "rounds",
    [
        ((23951, 23948, 24162, 24038), (23389, 22988, 22990, 23120)),  # even ports, as measured
        ((23000, 23000, 23000, 26000), (23000, 23000, 23000, 24000)),  # uneven once
    ],
)
def test_a_ring_over_even_ports_stays(rounds: tuple[tuple[int, ...], ...]) -> None:
    balance, reasons = judged(*rounds)
    assert balance.weights is None
    assert reasons == []


def test_the_last_slices_of_the_earlier_shares_are_not_judged() -> None:
    slow, other = [10**8, 10**8, 10**8, 5 * 10**7], [10**8, 5 * 10**7, 10**8, 10**8]
    balance, reasons = lagging(2, slow, Balance(mesh=True))
    assert len(reasons) == 1
    # This traffic would change the shares, but its slices began before the last decision.
    for _ in range(3):
        balance, reason = observe(balance, traffic(other, equal_shares(4)), SLICE // 2)
        assert (balance.last, reason) == (None, None)
    balance, reasons = lagging(8, slow, balance)
    assert (balance.weights, reasons) == (shares(slow), [])


@pytest.mark.parametrize("slow", range(4))
def test_a_ring_over_uneven_ports_becomes_a_mesh_with_the_shares_of_its_ports(slow: int) -> None:
    rates = [4 * 10**7] * 4
    rates[slow] = 2 * 10**7
    balance, reasons = lagging(12, rates, Balance(mesh=False))
    assert balance.weights == shares(rates)
    assert len(reasons) == 2
    assert reasons[1].endswith("33% less time than with 25%, 25%, 25%, 25%")


def test_traffic_is_judged_once_every_port_has_carried_enough() -> None:
    even, uneven = [10**8] * 4, [10**8, 10**8, 10**8, 2 * 10**7]
    part = [
        [Traffic(nbytes=link.nbytes // 4, busy_ns=link.busy_ns // 4) for link in row]
        for row in traffic(even, equal_shares(4))
    ]
    # If only a quarter of a slice has uneven rates, no share changes.
    odd = [
        [Traffic(nbytes=link.nbytes // 16, busy_ns=link.busy_ns // 16) for link in row]
        for row in traffic(uneven, equal_shares(4))
    ]
    balance = Balance(mesh=True)
    for table in (part, odd, part, part, odd, part):
        balance, reason = observe(balance, table, SLICE)
        assert reason is None
    assert balance.rounds == 1
    assert balance.pending is not None


def test_shares_return_when_a_port_is_well_again() -> None:
    slow, even = [10**8, 10**8, 10**8, 5 * 10**7], [10**8] * 4
    balance = after(10, slow, Balance(mesh=True))
    assert balance.weights is not None
    assert balance.weights[3] < WHOLE // 50
    balance = after(200, even, balance)
    assert balance.weights is not None
    assert port_time(even, balance.weights) <= port_time(even, equal_shares(4)) * 11 / 10


def test_a_trial_of_a_port_that_is_still_slow_is_taken_back_at_once() -> None:
    slow = [10**8, 10**8, 10**8, 75 * 10**6]
    balance, _ = lagging(10, slow, Balance(mesh=True))
    assert balance.weights == shares(slow)
    assert balance.weights == (19661, 19661, 19661, 6553)
    balance, reasons = lagging(80, slow, balance)
    assert balance.weights == shares(slow)
    assert len(reasons) == 2
    assert reasons[0] == (
        "the shares are 28.4%, 28.4%, 28.4%, 14.7%, to try whether the port of rank 3 can "
        "carry more than 75 MB/s"
    )
    tried = (18633, 18633, 18633, 9637)
    assert port_time(slow, tried) <= port_time(slow, shares(slow)) * 11 / 10


def test_a_port_that_owns_nothing_is_not_tried_where_more_of_its_rate_would_not_help() -> None:
    slow = [10**8, 10**8, 10**8, 4 * 10**7]
    balance, _ = lagging(10, slow, Balance(mesh=True))
    balance, reasons = lagging(200, slow, balance)
    assert (balance.weights, reasons) == (shares(slow), [])


def test_shares_that_make_nothing_faster_are_taken_back() -> None:
    """Check that equal shares return if the pace stays, and that the next rounds change nothing."""
    slow = (10**8, 10**8, 10**8, 5 * 10**7)
    balance = Balance(mesh=True)
    reasons = []
    for pace in (20_000, 22_000, 21_000, 21_000):
        balance, reason = rebalance(balance, slow, pace)
        reasons += [] if reason is None else [reason]
    assert reasons == [
        "the shares are 33.3%, 33.3%, 33.3%, 0%, since the ports carry 100 MB/s, "
        "100 MB/s, 100 MB/s, 50 MB/s: 33% less time than with 25%, 25%, 25%, 25%",
        "the shares are equal again, since all_reduces took 21 ms a megabyte with "
        "33.3%, 33.3%, 33.3%, 0% and 21 ms a megabyte before",
    ]
    assert (balance.weights, balance.number) == (equal_shares(4), 2)
    for _ in range(16):
        balance, reason = rebalance(balance, slow, 21_000)
        assert reason is None
    balance, reason = rebalance(balance, slow, 21_000)
    assert reason is not None
    assert balance.weights == shares(slow)


def test_shares_that_make_all_reduces_faster_stay() -> None:
    slow = (10**8, 10**8, 10**8, 5 * 10**7)
    balance = Balance(mesh=True)
    for pace in (20_000, 22_000, 14_000, 14_000, 14_000, 14_000):
        balance, _ = rebalance(balance, slow, pace)
    assert (balance.weights, balance.number, balance.earlier_pace) == (shares(slow), 1, None)


def test_the_pace_of_a_round_is_the_busiest_links_time_for_each_byte_of_the_tensor() -> None:
    table = traffic([10**8] * 4, equal_shares(4))
    # 8 MiB in a mesh of four: each port carries one and a half times as much at 100 MB/s.
    assert round_pace(table) == 15_000
    assert round_pace([[Traffic(nbytes=0, busy_ns=5)] * 3] * 3) is None


def test_after_number_fifteen_follows_one() -> None:
    rates = (40_000_000, 40_000_000, 40_000_000, 20_000_000)
    balance, _ = rebalance(Balance(mesh=True, number=15, last=rates), rates)
    assert balance.number == 1


def test_a_port_with_too_little_traffic_tells_nothing() -> None:
    table = traffic([10**8] * 3, [1, 1, 1])
    assert port_rates(table) is not None
    table[1] = [Traffic(nbytes=1000, busy_ns=4_999_999)] * 3
    assert port_rates(table) is None
    table[1] = [Traffic(nbytes=0, busy_ns=0)] * 3
    assert port_rates(table) is None
    before = Balance(mesh=True, last=(1, 2, 3))
    assert rebalance(before, None) == (before, None)


def test_the_rate_of_a_port_is_the_lower_one_of_its_directions() -> None:
    second = 10**9
    table = [
        [Traffic(nbytes=10**6 * (1 + 8 * (i == 0)), busy_ns=second) for _ in range(3)]
        for i in range(3)
    ]
    assert port_rates(table) == (2 * 10**6, 2 * 10**6, 2 * 10**6)


@given(
    st.integers(3, 6).flatmap(
        lambda ranks: st.lists(
            st.tuples(st.integers(10**6, 2 * 10**6), st.integers(2 * 10**7, 3 * 10**7)),
            min_size=ranks * ranks,
            max_size=ranks * ranks,
        )
    )
)
def test_a_port_counts_the_links_whose_other_end_is_not_slower_by_a_tenth(
    links: list[tuple[int, int]],
) -> None:
    """Compare with the rates as the description defines them, for even and for uneven ports."""
    ranks = round(len(links) ** 0.5)
    table = [
        [Traffic(nbytes=nbytes, busy_ns=busy_ns) for nbytes, busy_ns in links[at : at + ranks]]
        for at in range(0, len(links), ranks)
    ]

    def rate(all_links: Sequence[Traffic], counted: Sequence[Traffic]) -> int:
        carried, weight = (sum(link.nbytes for link in each) for each in (all_links, counted))
        return carried * weight * 10**9 // sum(link.nbytes * link.busy_ns for link in counted)

    others = [[j for j in range(ranks) if j != i] for i in range(ranks)]
    out = [[table[i][j] for j in others[i]] for i in range(ranks)]
    back = [[table[j][i] for j in others[i]] for i in range(ranks)]
    sending, receiving = ([rate(each, each) for each in way] for way in (out, back))
    expected = []
    for i in range(ranks):
        to = [table[i][j] for j in others[i] if receiving[j] * 10 >= sending[i] * 9]
        by = [table[j][i] for j in others[i] if sending[j] * 10 >= receiving[i] * 9]
        sent = rate(out[i], to) if to else sending[i]
        received = rate(back[i], by) if by else receiving[i]
        expected.append(min(sent, received))
    assert port_rates(table) == tuple(expected)
