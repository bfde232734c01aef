"""Tests of fault plans: the faults that are active at a time, and the times of changes."""

import re
from itertools import islice

import pytest

from slackline.errors import UsageError
from slackline.faults import Effects, Plan, RankState, parse_all

MS = 10**6
S = 10**9
DOWN = Effects(down=True)


def test_a_fault_is_there_from_its_start_until_before_its_end() -> None:
    plan = parse_all("link 0>1 down from 1s for 2s")
    seen = [plan.pairs(now_ns) for now_ns in (S - 1, S, 3 * S - 1, 3 * S)]
    assert seen == [{}, {(0, 1): DOWN}, {(0, 1): DOWN}, {}]


def test_a_link_fault_is_on_every_nic_and_in_both_directions() -> None:
    plan = parse_all("link 2-0 down")
    assert plan.pairs(0) == {(2, 0): DOWN, (0, 2): DOWN}
    assert plan.nics(0) == {}
    assert set(plan.links(0, hosts=3, nics=2)) == {(2, 0, 0), (2, 0, 1), (0, 2, 0), (0, 2, 1)}


def test_a_nic_fault_is_on_every_link_through_it() -> None:
    plan = parse_all("nic 1.1 down")
    assert plan.pairs(0) == {}
    assert plan.nics(0) == {(1, 1): DOWN}
    assert set(plan.links(0, hosts=3, nics=2)) == {(1, 0, 1), (0, 1, 1), (1, 2, 1), (2, 1, 1)}


def test_effects_on_one_path_add_up() -> None:
    plan = parse_all(
        [
            "link 0>1 delay 10ms rate 1Gbit loss 50% seed 3",
            "link 0-1 delay 5ms jitter 1ms loss 50%",
            "nic 1.0 rate 100Mbit seed 4 from 1s",
        ]
    )
    both = Effects(delay_ns=15_000_000, jitter_ns=1_000_000, rate_bps=10**9, loss=0.75, seed=3)
    assert plan.links(0, hosts=2, nics=1)[0, 1, 0] == both
    assert plan.links(S, hosts=2, nics=1)[0, 1, 0] == both | Effects(rate_bps=10**8, seed=4)
    assert plan.links(S, hosts=2, nics=1)[0, 1, 0].seed == 7


def test_the_native_core_gets_rates_in_bytes_per_second() -> None:
    rates = (None, 1, 8, 10**9)
    found = [Effects(rate_bps=rate).bytes_per_second for rate in rates]
    assert found == [0, 1, 1, 125_000_000], "0 means no limit"


def test_a_flapping_nic_is_down_first_and_then_up() -> None:
    plan = parse_all("nic 0.0 flap 500ms from 1s for 1200ms")
    times = [0, S, S + S // 2, 2 * S, 2 * S + S // 5]
    assert [bool(plan.nics(now_ns)) for now_ns in times] == [False, True, False, True, False]
    assert list(plan.changes()) == times[1:]
    assert plan.end_ns == times[-1]


def test_a_flapping_nic_without_an_end_changes_for_ever() -> None:
    plan = parse_all("nic 0.0 flap 500ms; link 0-1 down from 700ms")
    half = S // 2
    assert list(islice(plan.changes(), 5)) == [0, half, 700_000_000, 2 * half, 3 * half]
    assert plan.end_ns is None


@pytest.mark.parametrize(
    "text",
    [
        "nic 0.0 flap 300ms from 1s for 1100ms; link 0-1 down from 700ms for 1s; rank 0 kill",
        "nic 0.0 flap 1s for 1s",
        "nic 0.0 flap 2s for 1s",
        "nic 0.0 flap 250ms from 1ms",
    ],
)
def test_the_next_change_is_the_first_one_after_now(text: str) -> None:
    plan = parse_all(text)
    changes = list(islice(plan.changes(), 12))
    followed = [changes[0]]
    while len(followed) < 12 and (change := plan.next_change(followed[-1])) is not None:
        followed.append(change)
    assert followed == changes
    assert plan.next_change(-1) == changes[0]


def test_the_worst_of_a_rank_s_faults_counts() -> None:
    plan = parse_all(
        "rank 0 slow 2x; rank 0 slow 1.5x; rank 1 slow 2x; rank 1 stop from 1s for 1s; "
        "rank 1 kill from 2s"
    )
    slow = RankState(action="slow", factor=2.0)
    assert plan.ranks(0) == {0: RankState(action="slow", factor=3.0), 1: slow}
    assert plan.ranks(S)[1] == RankState(action="stop")
    assert plan.ranks(2 * S)[1] == plan.ranks(9 * S)[1] == RankState(action="kill")


def test_a_kill_is_over_when_it_is_done() -> None:
    assert parse_all("rank 0 kill from 5s").end_ns == 5 * S
    assert list(parse_all("rank 0 kill from 5s").changes()) == [5 * S]


def test_the_end_is_that_of_the_last_fault() -> None:
    assert Plan().end_ns == 0
    assert parse_all("link 0-1 down for 2s; nic 0.0 down from 1s for 4s").end_ns == 5 * S
    assert parse_all("link 0-1 down for 2s; nic 0.0 down").end_ns is None


def test_a_plan_is_parted_by_who_executes_it() -> None:
    plan = parse_all("link 0-1 down; rank 1 kill; nic 0.0 down")
    assert str(plan.of_network) == "link 0-1 down; nic 0.0 down"
    assert str(plan.of_ranks) == "rank 1 kill"
    assert plan.of_ranks + plan.of_network == parse_all("rank 1 kill; link 0-1 down; nic 0.0 down")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("link 0-4 down", "there is no host 4 for 'link 0-4 down': there are 4"),
        ("nic 4.0 down", "there is no host 4 for 'nic 4.0 down': there are 4"),
        ("nic 3.2 down", "there is no NIC 2 for 'nic 3.2 down': there are 2"),
        ("rank 4 kill", "there is no rank 4 for 'rank 4 kill': there are 4"),
    ],
)
def test_what_is_not_there_is_named(text: str, message: str) -> None:
    parse_all("link 0-3 down; nic 3.1 down; rank 3 kill").check(hosts=4, nics=2)
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        parse_all(text).check(hosts=4, nics=2)


def test_faults_that_lie_between_two_looks_are_skipped() -> None:
    plan = parse_all("nic 1.0 down from 2ms for 1ms; link 0-1 down from 2ms; rank 0 kill from 2ms")
    down, _, _ = plan.faults
    assert plan.skipped(0, 3 * MS) == (down,)
    assert plan.skipped(2 * MS - 1, 3 * MS) == (down,)
    assert plan.skipped(0, 3 * MS - 1) == ()
    assert plan.skipped(2 * MS, 4 * MS) == ()
    assert (
        parse_all("link 0>1 down for 1ms").skipped(-1, MS)
        == parse_all("link 0>1 down for 1ms").faults
    )
