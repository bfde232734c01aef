"""Tests of a collective that is called again and again, with a barrier before each call."""

from typing import Any

import pytest

from slackline.errors import UsageError
from slackline.plan.collective import Collective, generate
from slackline.sim import Fabric, Host, Operation, simulate_collective, simulate_series

BYTE_PS = 1000
"""The time of a byte at 8 Gbit/s, in picoseconds."""
RATE = 8 * 10**9
SEGMENT = 1024
BURST = 300


def one(name: str, ranks: int) -> Operation:
    plan = generate(Collective.ALL_REDUCE, name, ranks)
    return Operation(plan=plan, count=plan.chunks * SEGMENT // 4, segment_bytes=SEGMENT)


def fabric(hosts: int, **changes: Any) -> Fabric:
    return Fabric(hosts=(Host(rates_bps=(RATE,), **changes),) * hosts)


@pytest.mark.parametrize("pause", [0, 100, 299, 300, 5000])
def test_a_token_bucket_fills_during_the_pause_between_two_calls(pause: int) -> None:
    """Expect a full bucket for the first call, and the bytes of the pause for each other one."""
    found = simulate_series(
        one("ring", 2), fabric(2, burst_bytes=BURST), calls=3, pause_ps=pause * BYTE_PS
    )
    first, others = 2 * SEGMENT - BURST, 2 * SEGMENT - min(pause, BURST)
    assert found == (first * BYTE_PS, others * BYTE_PS, others * BYTE_PS)


@pytest.mark.parametrize("latency_ps", [0, 50_000, 10**6])
def test_a_token_bucket_fills_during_the_barrier(latency_ps: int) -> None:
    """Expect the last frame's latency, and the one of the barrier, to fill the bucket.

    The barrier has frames without bytes from each rank to every other: one latency.
    """
    half = latency_ps // 2
    host_burst = fabric(2, burst_bytes=BURST, latency_ps=half)
    plan = generate(Collective.BROADCAST, "direct", 2, 0)
    operation = Operation(plan=plan, count=SEGMENT // 4, segment_bytes=SEGMENT)
    found = simulate_series(operation, host_burst, calls=2)
    refilled = min(BURST, 2 * latency_ps // BYTE_PS)
    assert found == (
        (SEGMENT - BURST) * BYTE_PS + latency_ps,
        (SEGMENT - refilled) * BYTE_PS + latency_ps,
    )


@pytest.mark.parametrize("name", ["ring", "mesh", "halving-doubling"])
def test_without_token_buckets_a_call_of_equal_ranks_takes_the_time_of_a_single_one(
    name: str,
) -> None:
    operation = one(name, 4)
    on = fabric(operation.plan.members, latency_ps=70_000, frame_ps=3_000)
    alone_ps = simulate_collective(operation, on).duration_ps
    assert simulate_series(operation, on, calls=3, pause_ps=10**6) == (alone_ps,) * 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"calls": 0}, "calls must be a positive integer, not 0"),
        ({"calls": 1, "pause_ps": -1}, "pause_ps must be at least 0, not -1"),
        ({"calls": 1, "placement": (0,)}, "placement must have 2 members, not 1"),
    ],
)
def test_values_that_do_not_fit_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        simulate_series(one("ring", 2), fabric(2), **changes)
    assert str(raised.value) == said
