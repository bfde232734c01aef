"""Invariants, written beside the gateware that they describe and compiled for proofs only.

_claims     assertions and assumptions
_sums       the claim about the buffer of sums
"""

from slackline.circuit.proof._claims import assume, claim, ones
from slackline.circuit.proof._sums import SentSums

__all__ = [
    "SentSums",
    "assume",
    "claim",
    "ones",
]
