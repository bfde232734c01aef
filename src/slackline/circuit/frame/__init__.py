"""Frames in a circuit.

_layouts    beats, and the header of slackline.wire
_sequence   sequence numbers
_guard      frames that end, whatever resets the circuit
_crc        the header's checksum
_reader     the parser that begins every receiver
"""

from slackline.circuit.frame._crc import Crc
from slackline.circuit.frame._guard import FrameInlet, FrameOutlet
from slackline.circuit.frame._layouts import (
    ALL_REDUCE_SUM,
    HEADER,
    Beat,
    Frame,
    element_of,
    item_sizes,
    whole_items,
)
from slackline.circuit.frame._reader import FrameReader
from slackline.circuit.frame._sequence import after, behind

__all__ = [
    "ALL_REDUCE_SUM",
    "HEADER",
    "Beat",
    "Crc",
    "Frame",
    "FrameInlet",
    "FrameOutlet",
    "FrameReader",
    "after",
    "behind",
    "element_of",
    "item_sizes",
    "whole_items",
]
