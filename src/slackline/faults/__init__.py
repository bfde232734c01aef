"""A fault as data: one grammar for lab, engine and simulator. Pure: no clock, no network.

_model.py     LinkFault, NicFault, RankFault; what they do: Effects
_grammar.py   "link 2-3 delay 30ms from 10s for 5s", read; str() of a fault writes it
_plan.py      several faults over time: what is wrong now, and when that changes
"""

from slackline.faults._grammar import GRAMMAR, parse
from slackline.faults._model import (
    ACTIONS,
    NOTHING,
    Action,
    Effects,
    Fault,
    LinkFault,
    NicFault,
    RankFault,
)
from slackline.faults._plan import Plan, RankState, parse_all

__all__ = [
    "ACTIONS",
    "GRAMMAR",
    "NOTHING",
    "Action",
    "Effects",
    "Fault",
    "LinkFault",
    "NicFault",
    "Plan",
    "RankFault",
    "RankState",
    "parse",
    "parse_all",
]
