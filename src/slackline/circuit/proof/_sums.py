"""The claim that each port of a node gets each sum as it was made; for proofs only."""

from typing import Any

from amaranth.asserts import AnyConst
from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib.memory import Memory

from slackline.circuit.proof._claims import assume, claim

__all__ = ["SentSums"]


class SentSums:
    """The claim that no sender reads a beat of a frame before it is written, or after it is lost.

    The proof covers every slot, every place within it and every number of a frame. The claims about
    repeated frames say that beat `place` of frame `number` is read unchanged.
    """

    def __init__(self, sums: Memory, ended: Memory, kept: Signal) -> None:
        self._sums, self._ended, self._kept = sums, ended, kept
        self._slot_bits = (ended.depth - 1).bit_length()
        self._place_bits = (sums.depth - 1).bit_length() - self._slot_bits

    def claim(
        self,
        m: Module,
        platform: object,
        *,
        passing: Value,
        numbered: Value,
        moved: Value,
        number: Value,
        slot: Value,
        beat: Value,
        payload: Any,
        senders: list[Any],
    ) -> None:
        """Add the claims of all senders.

        When `moved`, beat `payload`, at place `beat` of frame `number`, is written to `slot`.
        `passing`: a frame is offered. `numbered`: the number of the offered frame is known.
        """
        slots = len(self._kept)
        the_slot, the_number = Signal(self._slot_bits), Signal(32)
        place = Signal(self._place_bits)
        m.d.comb += [each.eq(AnyConst(len(each))) for each in (the_slot, the_number, place)]
        # The buffer's surroundings must ensure that a frame fits its slot and that a frame's number
        # is known before the frame comes.
        assume(m, platform, ~passing | numbered, ~passing | payload.last | ~beat.all())

        here = moved & (slot == the_slot)
        whole, known = Signal(), Signal()
        held, ends_at = Signal(payload.shape()), Signal(self._place_bits)
        with m.If(here):
            with m.If(beat == place):
                m.d.sync += [held.eq(payload), known.eq(number == the_number)]
            m.d.sync += whole.eq(0)
            with m.If(payload.last):
                m.d.sync += [whole.eq(number == the_number), ends_at.eq(beat)]
        stored, ended = (memory.read_port(domain="comb") for memory in (self._sums, self._ended))
        m.d.comb += [stored.addr.eq(Cat(place, the_slot)), ended.addr.eq(the_slot)]
        changes = (slot == the_slot) & beat.any()
        kept = self._kept.bit_select(the_slot, 1)
        claim(
            m,
            platform,
            ~beat.any() | numbered,
            ~known | (stored.data == held),
            changes | ~kept | (ended.data.number != the_number) | whole,
            ~whole | ((ended.data.number == the_number) & (ended.data.end == ends_at) & kept),
            ~whole | ~changes,
            ~whole | (place > ends_at) | known,
            ~changes | (number != the_number) | (beat <= place) | known,
        )
        for sender in senders:
            full = sender.unsent == slots
            its = sender.repeats & (sender.slot == the_slot) & (sender.wanted == the_number)
            claim(
                m,
                platform,
                sender.unsent <= slots,
                # No slot is overwritten while a port has yet to take its frame, or takes it again.
                ~full | ~beat.any(),
                ~sender.repeats | ~((sender.slot == slot) & (moved | beat.any())),
                ~its | (whole & (sender.place <= ends_at)),
                ~its | (sender.place != place) | (known & (stored.data == held)),
                ~sender.sends | (sender.place <= Mux(sender.unsent.any(), sender.ended.end, beat)),
            )
