"""Sequence numbers of frames: they count from 1 to the largest number of the field, then from 1.

The number 0 stands for "not sequenced", so a count skips it. Engine, hosts, circuits and their
twins count in this way.
"""

from slackline.wire._fields import FIELDS

__all__ = ["FIRST_SEQUENCE", "LAST_SEQUENCE", "next_sequence", "sequences_behind"]

FIRST_SEQUENCE = 1
LAST_SEQUENCE = (1 << 8 * next(f.width for f in FIELDS if f.name == "sequence")) - 1


def next_sequence(sequence: int) -> int:
    """Return the sequence number after `sequence`; the number after 0 is the first one."""
    return FIRST_SEQUENCE if sequence == LAST_SEQUENCE else sequence + 1


def sequences_behind(sequence: int, expected: int) -> int:
    """Return how many steps of `next_sequence` lead from `sequence` to `expected`, 0 if none."""
    return (expected - sequence) % (LAST_SEQUENCE + 1 - FIRST_SEQUENCE)
