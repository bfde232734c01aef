"""Frames in a circuit.

_layouts    beats, and the header of slackline.wire
_crc        the header's checksum
_reader     the parser that begins every receiver
"""

from slackline.circuit.frame._crc import Crc
from slackline.circuit.frame._layouts import ALL_REDUCE_SUM, HEADER, Beat, Frame, element_of
from slackline.circuit.frame._reader import FrameReader

__all__ = [
    "ALL_REDUCE_SUM",
    "HEADER",
    "Beat",
    "Crc",
    "Frame",
    "FrameReader",
    "element_of",
]
