"""Training that continues after the loss of ranks, and loses no step.

ElasticState ─ _state       the training state: complete steps, equal on all ranks
    _step_files             the files of saved steps
shrink ─ _shrink            replacement of the default group by a group of the survivors
    _agreement              agreement of the survivors, through the store, on the new members
"""

from slackline.elastic._shrink import Shrunk, shrink
from slackline.elastic._state import ElasticState

__all__ = ["ElasticState", "Shrunk", "shrink"]
