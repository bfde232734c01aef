"""Tests of bytes that a NIC takes ahead, and that urgent frames do not overtake."""

from dataclasses import replace
from random import Random

import pytest
from drawn_fabrics import drawn_fabric

from slackline.errors import UsageError
from slackline.faults import parse_all
from slackline.plan.collective import Collective, generate
from slackline.sim import (
    Fabric,
    Host,
    Layer,
    Operation,
    Symbols,
    engine_ahead_bytes,
    lower_bound,
    simulate_collective,
    simulate_training,
)

BYTE_PS = 1000
"""The time of a byte at 8 Gbit/s, in picoseconds."""
RATE = 8 * 10**9
SEGMENT = 1024
SEGMENT_PS = SEGMENT * BYTE_PS
US = 10**6


def fabric(hosts: int, ahead_bytes: int, **changes: object) -> Fabric:
    host = Host(rates_bps=(RATE,), cores=2, ahead_bytes=ahead_bytes)
    return Fabric(hosts=(replace(host, **changes),) * hosts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ahead_bytes", "frames"), [(0, 1), (1, 1), (1024, 1), (1025, 2), (4096, 4), (10**6, 20)]
)
def test_an_urgent_frame_waits_for_the_frames_that_the_nic_took_ahead(
    ahead_bytes: int, frames: int
) -> None:
    """Post an urgent gradient of one segment while the first of 20 others is being sent.

    Rank 1 sends each segment to rank 0, which adds to it and sends it back: the urgent segment
    waits for `frames` segments and needs two transmissions of its own.
    """
    plan = generate(Collective.ALL_REDUCE, "reduce-broadcast", 2)
    run = simulate_training(
        [
            Layer(forward_ps=0, backward_ps=SEGMENT_PS // 2, gradient_bytes=SEGMENT),
            Layer(forward_ps=0, backward_ps=0, gradient_bytes=20 * SEGMENT),
        ],
        fabric(2, ahead_bytes),
        lambda nbytes: Operation(plan=plan, count=nbytes // 4, segment_bytes=SEGMENT),
        steps=1,
    )
    ends_ps = [ended for rank in run.reductions_ps[0] for _, ended in rank[:1]]
    assert max(ends_ps) == (frames + 2) * SEGMENT_PS
    assert run.ended_ps == (22 * SEGMENT_PS,) * 2


def test_the_order_of_equally_urgent_frames_to_one_host_does_not_change() -> None:
    plan = generate(Collective.ALL_REDUCE, "ring", 4)
    one = Operation(plan=plan, count=4 * 9 * SEGMENT // 4, segment_bytes=SEGMENT)
    runs = [
        simulate_collective(one, fabric(4, ahead, latency_ps=700_000, frame_ps=5_000), record=True)
        for ahead in (0, 1, 5000, 10**7)
    ]
    assert len({run.ended_ps for run in runs}) == 1
    assert len({run.frames for run in runs}) == 1


@pytest.mark.parametrize("seed", range(20))
def test_bytes_ahead_change_no_result_and_undercut_no_bound(seed: int) -> None:
    random = Random(seed)
    name = random.choice(("ring", "mesh", "direct", "reduce-broadcast", "halving-doubling"))
    plan = generate(Collective.ALL_REDUCE, name, 4)
    one = Operation(plan=plan, count=random.randint(1, 20_000), segment_bytes=4096)
    without = drawn_fabric(random, 4)
    hosts = tuple(
        replace(host, ahead_bytes=random.choice((1, 5000, 10**6))) for host in without.hosts
    )
    faults = parse_all(["link 0-1 loss 20%", "link 1-2 down from 20us for 200us"])
    plain = simulate_collective(one, without, arithmetic=Symbols())
    ahead = replace(without, hosts=hosts)
    for given in (parse_all([]), faults):
        run = simulate_collective(one, ahead, arithmetic=Symbols(), faults=given)
        assert run.values == plain.values
        assert run.messages == plain.messages
        assert run.duration_ps >= lower_bound(one, ahead).time_ps


def test_frames_that_a_nic_took_ahead_are_sent_again_when_it_goes_down() -> None:
    """Send four frames; NIC 0, which has two of them, goes down during its first one.

    NIC 1 sends its own two frames in the meantime, and the two of NIC 0 when 100 us have passed.
    """
    plan = generate(Collective.BROADCAST, "direct", 2, 0)
    one = Operation(plan=plan, count=4 * SEGMENT // 4, segment_bytes=SEGMENT)
    on = replace(fabric(2, 10**6, rates_bps=(RATE,) * 2), resend_ps=100 * US)
    healthy = simulate_collective(one, on)
    assert healthy.duration_ps == 2 * SEGMENT_PS
    cut = simulate_collective(one, on, faults=parse_all(["nic 1.0 down from 500ns"]))
    assert cut.duration_ps == US // 2 + 100 * US + 2 * SEGMENT_PS
    assert cut.resent_packets == 2


def test_the_engine_s_own_limits_give_the_bytes_ahead() -> None:
    """Expect the sum of the queue's limit, the socket's limit, and 2.4 ms of the rate."""
    assert engine_ahead_bytes(200 * 10**6) == (16 << 10) + 25_000 + 60_000
    assert engine_ahead_bytes(200 * 10**6, urgent=False) == (64 << 10) + (128 << 10) + 60_000
    assert engine_ahead_bytes(10**9) == (64 << 10) + 500_000 + 300_000
    with pytest.raises(UsageError, match=r"^rate_bps must be positive, not 0$"):
        engine_ahead_bytes(0)


def test_negative_bytes_ahead_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^ahead_bytes must be at least 0, not -1$"):
        Host(rates_bps=(RATE,), ahead_bytes=-1)
