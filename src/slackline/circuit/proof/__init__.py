"""Invariants, written beside the gateware that they describe and compiled for proofs only.

_claims     assertions and assumptions
_replay     the claim about the replay buffer
"""

from slackline.circuit.proof._claims import assume, claim, ones
from slackline.circuit.proof._replay import ReplayedSums

__all__ = [
    "ReplayedSums",
    "assume",
    "claim",
    "ones",
]
