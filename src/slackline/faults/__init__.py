"""Faults of a network as data, with one grammar for lab, engine and simulator.

The package is pure: no clock, no network.

_model.py     LinkFault, NicFault, RankFault; their effects on packets: Effects
_grammar.py   parses "link 2-3 delay 30ms from 10s for 5s"; str() of a fault writes it
_plan.py      several faults over time: the faults active at a moment, and the next change
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
