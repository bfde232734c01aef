"""The claim that the replay buffer repeats a frame exactly as it first passed; for proofs only."""

from amaranth.asserts import AnyConst
from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib.memory import Memory

from slackline.circuit.proof._claims import assume, claim

__all__ = ["ReplayedSums"]


class ReplayedSums:
    """The claim that the replay buffer repeats beat `place` of frame `number` unchanged.

    The proof covers every place and number. The last claim is the one to prove; the others state
    facts about the memories that the induction for the last claim needs.
    """

    def __init__(self, sums: Memory, numbers: Memory, kept: Signal, slot_bits: int) -> None:
        self._sums, self._numbers, self._kept = sums, numbers, kept
        self._place_bits = (sums.depth >> slot_bits).bit_length() - 1
        self._slot_bits = slot_bits

    def claim(
        self,
        m: Module,
        platform: object,
        *,
        passing: Value,
        numbered: Value,
        moved: Value,
        number: Value,
        beat: Value,
        payload: Value,
        idle: Value,
        looks: Value,
        gives: Value,
        wanted: Value,
        read: Value,
    ) -> None:
        """Add the claim that each beat of a repeated frame equals the beat that passed first.

        When `moved`, beat `payload` of frame `number` passes; when it `gives`, the buffer repeats
        beat `read` of frame `wanted`. `passing`: a frame is offered. `numbered`: the number of the
        offered frame is known. `idle`: no frame is being repeated. `looks`: the wanted frame is
        being looked up.
        """
        bits = self._slot_bits
        the_number, place = Signal(32), Signal(self._place_bits)
        m.d.comb += [the_number.eq(AnyConst(32)), place.eq(AnyConst(self._place_bits))]
        its, slot = the_number[:bits], number[:bits]
        ends = moved & payload.last
        # The buffer's surroundings must ensure that a frame fits its slot and that a frame's number
        # is known before the frame comes.
        assume(m, platform, ~passing | numbered, ~passing | payload.last | ~beat.all())

        partial, whole, known = Signal(), Signal(), Signal()
        held, ends_at = Signal(payload.shape()), Signal(self._place_bits)
        with m.If(moved):
            m.d.sync += partial.eq(~ends)
        with m.If(moved & (slot == its)):
            with m.If(beat == place):
                m.d.sync += [held.eq(payload), known.eq(number == the_number)]
            with m.If(ends):
                m.d.sync += [whole.eq(number == the_number), ends_at.eq(beat)]

        stored, end = (self._sums.read_port(domain="comb") for _ in range(2))
        said = self._numbers.read_port(domain="comb")
        m.d.comb += [
            stored.addr.eq(Cat(place, its)),
            end.addr.eq(Cat(ends_at, its)),
            said.addr.eq(its),
        ]
        changes = partial & (slot == its)
        of_its = gives & (wanted[:bits] == its)
        claim(
            m,
            platform,
            Mux(idle, partial == beat.any(), ~partial),
            ~looks | (beat == 0),
            ~partial | numbered,
            ~known | (stored.data == held),
            changes | ~self._kept.bit_select(its, 1) | (said.data != the_number) | whole,
            changes | ~whole | (place > ends_at) | known,
            changes | ~whole | end.data.last,
            ~changes | (number != the_number) | (beat <= place) | known,
            idle | looks | (wanted != the_number) | (whole & (beat <= ends_at)),
            ~of_its | (beat != place) | (read == stored.data),
            ~of_its | (beat != ends_at) | (read.last == end.data.last),
            ~gives | (wanted != the_number) | (beat != place) | (known & (read == held)),
        )
