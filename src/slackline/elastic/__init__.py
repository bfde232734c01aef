"""Training that continues while ranks leave and join, and loses no step.

ElasticState ─ _state       the training state: complete steps, equal on all ranks
    _step_files             the files of saved steps
shrink ─ _shrink            replacement of the default group by a group of the survivors
    _agreement              agreement of the survivors, through the store, on the new members
reconfigure ─ _reconfigure  change of the default group's members to a list of processes
    _change                 one change: the meeting, the new group, the decision
    _reconfigurable         the group of torch's own door to changes
    _handle                 the strings that name processes, and the doors that they lead to
    _meeting                the store at which the new members meet, with a deadline
"""

from slackline.elastic._reconfigurable import reconfigurable_group
from slackline.elastic._reconfigure import Reconfigured, get_handle, reconfigure
from slackline.elastic._shrink import Shrunk, shrink
from slackline.elastic._state import ElasticState

__all__ = [
    "ElasticState",
    "Reconfigured",
    "Shrunk",
    "get_handle",
    "reconfigurable_group",
    "reconfigure",
    "shrink",
]
