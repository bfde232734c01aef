"""Faults of the one grammar in a simulation: exact times, and the same sums as without them."""

import pytest

from slackline.errors import LinkError, PeerError, TimeoutError, UsageError
from slackline.faults import parse_all
from slackline.plan.collective import Collective, CollectivePlan, Instruction, generate
from slackline.sim import (
    CollectiveRun,
    Fabric,
    Framing,
    Host,
    Operation,
    Symbols,
    simulate_collective,
)

BYTE_PS = 1000
"""The time of a byte at 8 Gbit/s, in picoseconds."""
RATE = 8 * 10**9
SEGMENT = 4096
US, MS = 10**6, 10**9


def run(
    faults: str, *, ranks: int = 2, segments: int = 1, nics: int = 1, **changes: object
) -> CollectiveRun:
    """Run a ring on a network without latency; each chunk has `segments` segments."""
    plan = generate(Collective.ALL_REDUCE, "ring", ranks)
    one = Operation(plan=plan, count=ranks * segments * SEGMENT // 4, segment_bytes=SEGMENT)
    host = Host(rates_bps=(RATE,) * nics)
    fabric = Fabric(**{"hosts": (host,) * ranks, **changes})  # type: ignore[arg-type]
    return simulate_collective(one, fabric, faults=parse_all(faults), arithmetic=Symbols())


HEALTHY_PS = 2 * SEGMENT * BYTE_PS
"""The duration of the ring of two ranks with one segment in each chunk: two steps."""


def test_a_delay_is_paid_in_every_step() -> None:
    assert run("link 0-1 delay 1ms").duration_ps == HEALTHY_PS + 2 * MS


def test_a_delay_in_one_direction_is_paid_by_one_receiver() -> None:
    """Make rank 1 late with its half of the sum, for which rank 0 waits."""
    slow = run("link 0>1 delay 1ms")
    assert slow.ended_ps == (HEALTHY_PS + MS, HEALTHY_PS + MS)


def test_a_delay_ends_with_its_fault() -> None:
    """Hit the first step, which begins at 0, but not the second one, after 1 ms."""
    assert run("link 0-1 delay 1ms for 500us").duration_ps == HEALTHY_PS + MS
    assert run("link 0-1 delay 1ms from 1ms for 500us").duration_ps == HEALTHY_PS
    assert run("link 0-1 delay 1ms from 2us").duration_ps == HEALTHY_PS + MS


def test_a_link_of_half_the_rate_takes_twice_as_long() -> None:
    assert run("link 0-1 rate 4Gbit", segments=8).duration_ps == 2 * 8 * HEALTHY_PS


def test_a_nic_of_half_the_rate_takes_twice_as_long() -> None:
    assert run("nic 0.0 rate 4Gbit", segments=8).duration_ps == 2 * 8 * HEALTHY_PS


def test_what_is_under_way_when_a_nic_goes_down_is_sent_again() -> None:
    """Lose the frames of the first step after 1 us; they are sent again 50 us later."""
    down = run("nic 0.0 down from 1us for 10us", resend_ps=50 * US)
    assert down.duration_ps == US + 50 * US + HEALTHY_PS
    assert down.resent_packets == 2
    assert down.values == run("").values


def test_frames_wait_for_a_nic_that_comes_back() -> None:
    assert run("nic 0.0 down for 300us").duration_ps == 300 * US + HEALTHY_PS


def test_the_other_nic_carries_everything() -> None:
    healthy = run("", segments=8, nics=2).duration_ps
    assert healthy == 8 * HEALTHY_PS // 2
    assert run("nic 0.1 down", segments=8, nics=2).duration_ps == 8 * HEALTHY_PS


def test_a_nic_that_flaps_without_end_lets_a_simulation_end() -> None:
    """Wait until 30 us; the four steps take 16 us of the time until 60 us."""
    assert run("nic 1.0 flap 30us", ranks=3).duration_ps == 30 * US + 4 * SEGMENT * BYTE_PS


def test_lost_packets_are_sent_again_and_no_sum_changes() -> None:
    framing = Framing(packet_bytes=512)
    healthy = run("", segments=16, framing=framing)
    lossy = run("link 0-1 loss 5%", segments=16, framing=framing)
    assert lossy.values == healthy.values
    assert lossy.resent_packets > 0
    assert lossy.duration_ps > healthy.duration_ps
    assert lossy == run("link 0-1 loss 5%", segments=16, framing=framing)
    assert lossy != run("link 0-1 loss 5%", segments=16, framing=framing, seed=1)
    assert lossy != run("link 0-1 loss 5% seed 1", segments=16, framing=framing)


def test_a_lost_packet_is_sent_again_a_round_trip_later() -> None:
    """Send a frame of one packet: every loss costs a round trip and the frame's own time."""
    message = Operation(plan=generate(Collective.POINT_TO_POINT, "direct", 2, 0), count=1024)
    fabric = Fabric.uniform(2, rate_bps=RATE, latency_ps=5 * US)
    for delay_ps, faults in (
        (0, "link 0>1 loss 90%"),
        (2 * MS, "link 0>1 loss 90% delay 2ms; link 1>0 delay 3ms"),
    ):
        lossy = simulate_collective(message, fabric, faults=parse_all(faults))
        back_ps = 3 * MS if delay_ps else 0
        attempt_ps = SEGMENT * BYTE_PS + 20 * US + delay_ps + back_ps
        assert lossy.resent_packets > 1
        arrived_ps = SEGMENT * BYTE_PS + 10 * US + delay_ps
        assert lossy.ended_ps[1] == lossy.resent_packets * attempt_ps + arrived_ps


def test_corrupt_packets_are_lost_packets() -> None:
    assert run("link 0-1 corrupt 20%", segments=16).resent_packets > 0


def test_packets_that_come_twice_are_received_twice() -> None:
    twice, once = run("link 0-1 duplicate 100%"), run("")
    assert twice.received_bytes == tuple(2 * nbytes for nbytes in once.received_bytes)
    assert twice.sent_bytes == once.sent_bytes


def test_a_packet_out_of_order_is_a_millisecond_late() -> None:
    assert run("link 0-1 reorder 100%").duration_ps == HEALTHY_PS + 2 * MS


def test_jitter_delays_by_at_most_its_size_and_keeps_the_order() -> None:
    jittery = run("link 0-1 jitter 1ms", segments=8)
    assert 8 * HEALTHY_PS < jittery.duration_ps <= 8 * HEALTHY_PS + 16 * MS
    assert jittery.values == run("", segments=8).values


def test_a_slow_rank_reduces_slowly() -> None:
    host = Host(rates_bps=(RATE,), reduce_bytes_per_second=10**9)
    healthy = run("", hosts=(host, host))
    slow = run("rank 1 slow 3x", hosts=(host, host))
    assert healthy.duration_ps == HEALTHY_PS + SEGMENT * BYTE_PS
    assert slow.duration_ps == HEALTHY_PS + 3 * SEGMENT * BYTE_PS


def test_a_rank_becomes_slow_in_the_middle_of_a_reduction() -> None:
    """Begin 4096 ns of work at 4096 ns: 904 ns of them are done at full speed."""
    host = Host(rates_bps=(RATE,), reduce_bytes_per_second=10**9)
    slow = run("rank 1 slow 2x from 5us", hosts=(host, host))
    assert slow.duration_ps == HEALTHY_PS + (904 + 2 * (4096 - 904)) * 1000


def test_a_rank_becomes_fast_again_in_the_middle_of_a_reduction() -> None:
    """Begin at 4096 ns at half the speed: until 5000 ns 452 of 4096 ns of work are done."""
    host = Host(rates_bps=(RATE,), reduce_bytes_per_second=10**9)
    slow = run("rank 1 slow 2x for 5us", hosts=(host, host))
    assert slow.ended_ps[0] == 5000 * 1000 + (4096 - 452) * 1000 + SEGMENT * BYTE_PS


def test_a_rank_that_stands_still_goes_on_later() -> None:
    assert run("rank 1 stop for 1ms").duration_ps == MS + HEALTHY_PS


def test_a_dead_rank_is_named() -> None:
    with pytest.raises(PeerError) as raised:
        run("rank 1 kill from 1us")
    assert str(raised.value) == "rank 1 is dead after 8192ns and others wait for it"
    assert raised.value.peer == 1


def test_a_rank_that_never_goes_on_is_named() -> None:
    with pytest.raises(PeerError) as raised:
        run("rank 0 stop from 1us")
    assert str(raised.value) == "rank 0 stands still after 8192ns and others wait for it"


@pytest.mark.parametrize("fault", ["link 0>1 down", "link 0>1 loss 100%", "nic 0.0 down"])
def test_hosts_without_a_path_are_named(fault: str) -> None:
    with pytest.raises(LinkError) as raised:
        run(fault)
    after = "0ns" if fault.startswith("nic") else "4096ns"
    assert str(raised.value) == f"host 0 cannot reach host 1: all paths are down after {after}"


def test_a_simulation_gives_up_at_its_limit() -> None:
    plan = generate(Collective.ALL_REDUCE, "ring", 2)
    one, fabric = Operation(plan=plan, count=64), Fabric.uniform(2, rate_bps=RATE)
    faults = parse_all("link 0-1 delay 10ms")
    with pytest.raises(TimeoutError) as raised:
        simulate_collective(one, fabric, faults=faults, limit_ps=5 * MS)
    assert str(raised.value) == "the simulation was not over after 5ms of simulated time"


def test_a_plan_that_waits_for_ever_is_refused() -> None:
    waits = (Instruction.parse("ADD_1C0!"),), (Instruction.parse("ADD_0C0!"),)
    plan = CollectivePlan(
        name="nobody sends",
        collective=Collective.ALL_REDUCE,
        ranks=2,
        chunks=1,
        programs=waits,
        rank_ordered=False,
    )
    with pytest.raises(UsageError) as raised:
        simulate_collective(Operation(plan=plan, count=16), Fabric.uniform(2, rate_bps=RATE))
    said = "nothing happens after 0ns and something still waits: is the plan valid?"
    assert str(raised.value) == said


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("link 0-2 down", "there is no host 2 for 'link 0-2 down': there are 2"),
        ("nic 0.1 down", "there is no NIC 1 for 'nic 0.1 down': there are 1"),
        ("rank 2 kill", "there is no rank 2 for 'rank 2 kill': there are 2"),
    ],
)
def test_a_fault_of_something_that_is_not_there_is_refused(fault: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        run(fault)
    assert str(raised.value) == said
