"""Sequence numbers in circuits: the count of `slackline.wire`, which skips 0."""

from amaranth.hdl import Mux, Value

from slackline.wire import FIRST_SEQUENCE, LAST_SEQUENCE

__all__ = ["after", "behind"]

_BITS = LAST_SEQUENCE.bit_length()


def after(sequence: Value) -> Value:
    """Return the sequence number after `sequence`: see slackline.wire.next_sequence."""
    return Mux(sequence == LAST_SEQUENCE, FIRST_SEQUENCE, sequence + 1)[:_BITS]


def behind(sequence: Value, expected: Value) -> Value:
    """Return the steps from `sequence` to `expected`: see slackline.wire.sequences_behind."""
    difference = (expected - sequence)[: _BITS + 1]
    # The difference of a number before the wrap and one after it counts 0, which is no number.
    return (difference - difference[_BITS])[:_BITS]
