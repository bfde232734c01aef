"""Hashes of a training with virtual ranks, and a comparison of the bits of its ranks.

_evidence       all of it together, as the wrapper uses it
  _certificate  the hash of the state after each step, in the background
  _probe        virtual rank 0 computed by every rank in the first step, and compared
    _conditions all that is known to change the bits of a process's computation
  _tensors      the hashes of single tensors, for the comparison of two runs
    _state      the state as pages of bytes, and their hash
"""

from slackline.overlap.certificate._evidence import Evidence
from slackline.overlap.certificate._state import state_hash

__all__ = ["Evidence", "state_hash"]
