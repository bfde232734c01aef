"""The arithmetic of all circuits.

_adder      one lane: fp32 and int32
_elements   the table of element types, as signals
_halves     bf16 and fp16 into fp32 and back
_rounder    the last stage, which gives sums unchanged or rounded to 16 bits
_lanes      parallel lanes behind a stream
"""

from slackline.circuit.datapath._adder import Adder
from slackline.circuit.datapath._elements import is_half, way_of
from slackline.circuit.datapath._halves import Narrow, Widen
from slackline.circuit.datapath._lanes import Lanes, chosen_words
from slackline.circuit.datapath._rounder import Rounder

__all__ = [
    "Adder",
    "Lanes",
    "Narrow",
    "Rounder",
    "Widen",
    "chosen_words",
    "is_half",
    "way_of",
]
