"""Tests that data of a failed read of the host's memory are never taken for a contribution."""

from typing import Any

import pytest

from slackline.circuit import RingOptions

pytest.importorskip("amaranth", reason="amaranth is missing: slackline-torch[circuit]")

OPTIONS = RingOptions(lanes=1, slots=4, payload_bytes=128, operations=2)
Read = tuple[int, int, bool]
"""A read: the beats that were requested, the beats that came, and whether it is marked as bad."""


def taken(reads: list[Read]) -> tuple[list[list[int]], bool, int]:
    """Return the frames that the buffer gives, whether it says it failed, and how often it did.

    Each word has the number of its read and its place.
    """
    from amaranth.sim import Simulator

    from slackline.circuit.ring._dma import RingReads

    buffer = RingReads(OPTIONS)
    given: list[list[int]] = []
    state = {"failed": False, "fails": 0}

    async def request(ctx: Any) -> None:
        for asked, _, _ in reads:
            ctx.set(buffer.reserved, asked)
            await ctx.tick()
        ctx.set(buffer.reserved, 0)

    async def answer(ctx: Any) -> None:
        for _ in range(len(reads) + 1):
            await ctx.tick()
        for number, (_, came, bad) in enumerate(reads):
            for place in range(came):
                last = place == came - 1
                word = {"data": 100 * number + place, "last": last, "bad": bad and last}
                ctx.set(buffer.i.payload, word)
                ctx.set(buffer.i.valid, 1)
                state["fails"] += ctx.get(buffer.fails)
                await ctx.tick()
        ctx.set(buffer.i.valid, 0)

    async def take(ctx: Any) -> None:
        for asked, _, _ in reads:
            for _ in range(200):
                if ctx.get(buffer.whole):
                    break
                await ctx.tick()
            else:
                break
            ctx.set(buffer.begun, 1)
            ctx.set(buffer.taken, 1)
            words = []
            for _ in range(asked):
                words.append(ctx.get(buffer.word))
                await ctx.tick()
                ctx.set(buffer.begun, 0)
            ctx.set(buffer.taken, 0)
            given.append(words)
        state["failed"] = bool(ctx.get(buffer.failed))

    simulator = Simulator(buffer)
    simulator.add_clock(1e-9)
    for each in (request, answer, take):
        simulator.add_testbench(each)
    simulator.run()
    return given, state["failed"], state["fails"]


def words(number: int, count: int) -> list[int]:
    return [100 * number + place for place in range(count)]


def test_good_reads_are_given_in_order() -> None:
    reads = [(16, 16, False), (1, 1, False), (32, 32, False)]
    assert taken(reads) == ([words(0, 16), words(1, 1), words(2, 32)], False, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param((16, 16, True), id="bad"),
        pytest.param((16, 4, False), id="short"),
        pytest.param((16, 1, False), id="one word"),
        pytest.param((16, 17, False), id="long"),
    ],
)
def test_frames_before_a_failed_read_are_given_and_none_from_it_on(wrong: Read) -> None:
    reads = [(16, 16, False), wrong, (16, 16, False)]
    assert taken(reads) == ([words(0, 16)], True, 1)
