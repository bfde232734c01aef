"""Tests of a ring NIC's send window: repeats after a timeout, and numbers that wrap."""

from itertools import pairwise
from typing import Any

import pytest

from slackline.wire import LAST_SEQUENCE

pytest.importorskip("amaranth", reason="amaranth is missing: slackline-torch[circuit]")

SLOTS = 4


def driven(drive: Any) -> None:
    from amaranth.sim import Simulator

    from slackline.circuit.ring import _window

    window = _window.RingWindow(SLOTS)

    async def bench(ctx: Any) -> None:
        await drive(ctx, window)

    simulator = Simulator(window)
    simulator.add_clock(1e-9)
    simulator.add_testbench(bench)
    simulator.run()


async def pulse(ctx: Any, *signals: Any) -> None:
    for each in signals:
        ctx.set(each, 1)
    await ctx.tick()
    for each in signals:
        ctx.set(each, 0)


@pytest.mark.parametrize("timeout", [0, 1, 10, 100])
def test_repeats_become_rarer_with_each_turn_without_an_answer(timeout: int) -> None:
    async def drive(ctx: Any, window: Any) -> None:
        ctx.set(window.timeout, timeout)
        await pulse(ctx, window.begun, window.ready)
        await pulse(ctx, window.taken)
        times = []
        for cycle in range(5000):
            again = ctx.get(window.again)
            if again:
                times.append(cycle)
            ctx.set(window.retaken, again)
            await ctx.tick()
        pauses = [later - sooner for sooner, later in pairwise(times)]
        assert len(times) < 14
        # A few cycles pass between the count's end and the frame.
        assert all(2 * sooner - 8 <= later for sooner, later in pairwise(pauses))
        assert pauses[-1] > 1000

    driven(drive)


def test_numbers_skip_zero_and_slots_go_on_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    from slackline.circuit.ring import _window

    first = LAST_SEQUENCE - 1
    monkeypatch.setattr(_window, "FIRST_SEQUENCE", first)
    numbers = [first, LAST_SEQUENCE, 1, 2, 3, 4, 5]

    async def drive(ctx: Any, window: Any) -> None:
        ctx.set(window.timeout, LAST_SEQUENCE)
        seen = []
        for place, number in enumerate(numbers):
            assert ctx.get(window.room)
            seen.append((ctx.get(window.begun_number), ctx.get(window.begun_slot)))
            await pulse(ctx, window.begun, window.ready)
            assert (ctx.get(window.fresh), ctx.get(window.fresh_slot)) == (1, place % SLOTS)
            await pulse(ctx, window.taken)
            if place >= 2:
                # The first frame of three is acknowledged.
                ctx.set(window.acknowledge, numbers[place - 1])
                await pulse(ctx, window.answered)
            # An old ACK changes nothing.
            ctx.set(window.acknowledge, first)
            await pulse(ctx, window.answered)
            assert number == seen[-1][0]
        assert seen == [(number, place % SLOTS) for place, number in enumerate(numbers)]
        for _ in range(2):
            assert ctx.get(window.room)
            await pulse(ctx, window.begun)
        assert not ctx.get(window.room)

    driven(drive)


@pytest.mark.slow
@pytest.mark.simulates
@pytest.mark.timeout(600)
def test_rings_over_wires_with_faults_go_on_when_their_numbers_wrap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ring_mutants import OPTIONS, ring_fails

    from slackline.circuit import QueuedRingNic, convert
    from slackline.circuit.ring import _receiver, _window

    for module in (_window, _receiver):
        monkeypatch.setattr(module, "FIRST_SEQUENCE", LAST_SEQUENCE - 2)
    assert ring_fails(convert("ring", QueuedRingNic(OPTIONS))) == ""
