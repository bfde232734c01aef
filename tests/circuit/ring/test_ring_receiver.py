"""Tests that a ring NIC's receiver takes a frame once, however close a copy of it follows."""

from collections import Counter
from typing import Any

import pytest
from mutating import Mutant, make

from slackline.circuit import RingOptions
from slackline.wire import Collective, DType, FrameFlag, FrameKind, Header, ReduceOp, encode

OPTIONS = RingOptions(lanes=16, slots=2, payload_bytes=128, operations=2)


def beats(sequence: int) -> list[dict[str, int]]:
    """Return the two beats of a frame."""
    header = Header(
        kind=FrameKind.DATA,
        dtype=DType.FLOAT32,
        collective=Collective.ALL_REDUCE,
        reduce_op=ReduceOp.SUM,
        flags=FrameFlag.PARTIAL,
        sequence=sequence,
        total=64,
        length=64,
    )
    words = [int.from_bytes(part, "little") for part in (encode(header), bytes(64))]
    return [{"data": word, "last": k, "bad": 0} for k, word in enumerate(words)]


def events(pause: int, *, release: bool) -> Counter[str]:
    """Return the events of a frame that comes twice.

    The copy's last beat comes `pause` cycles after the beat before. With `release`, the first
    frame's slot is freed in the last of these cycles.
    """
    from amaranth.sim import Simulator

    from slackline.circuit.ring._nic import RingReceiver

    receiver = RingReceiver(OPTIONS)
    seen: Counter[str] = Counter()

    async def send(ctx: Any) -> None:
        async def cycle() -> None:
            for name in ("accepted", "repeated", "unordered", "malformed"):
                seen[name] += ctx.get(receiver.events[name])
            await ctx.tick()

        for turn, beat in enumerate(beats(1) * 2):
            for k in range(pause if turn == 3 else 0):
                ctx.set(receiver.released, release and k == pause - 1)
                await cycle()
            ctx.set(receiver.released, 0)
            ctx.set(receiver.i.payload, beat)
            ctx.set(receiver.i.valid, 1)
            await cycle()
            ctx.set(receiver.i.valid, 0)
        for _ in range(8):
            await cycle()
        seen["there"] = ctx.get(receiver.arrived[0])

    simulator = Simulator(receiver)
    simulator.add_clock(1e-6)
    simulator.add_testbench(send)
    simulator.run()
    return +seen


@pytest.fixture(autouse=True)
def amaranth() -> None:
    pytest.importorskip("amaranth", reason="amaranth is missing: slackline-torch[circuit]")


@pytest.mark.parametrize("pause", [0, 1, 5])
def test_a_frame_that_comes_twice_is_taken_once(pause: int) -> None:
    assert events(pause, release=False) == Counter(accepted=1, repeated=1, there=1)


def test_a_frame_that_comes_again_while_its_slot_is_freed_leaves_nothing_there() -> None:
    assert events(8, release=True) == Counter(accepted=1, repeated=1)


def test_a_receiver_that_looks_only_when_a_frame_begins_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = Mutant(
        "ring._receiver",
        ("RingReceiver",),
        ("ring._nic",),
        "keep.accepted & ~fresh",
        "keep.accepted & 0",
        str,
    )
    make(wrong, monkeypatch)
    assert events(0, release=False)["accepted"] == 2
    assert events(8, release=True)["there"] != 0
