"""Faults of a network as data, with one grammar for lab, engine and simulator.

The package is pure: no clock, no network.

_model.py     LinkFault, NicFault, RankFault; their effects on packets: Effects
_grammar.py   parses "link 2-3 delay 30ms from 10s for 5s"; str() of a fault writes it
_network.py   the state of a network at one moment: the effects on links, NICs and paths
_plan.py      several faults over time: the faults active at a moment, and the next change
_scheduler.py a plan on a clock: its state at a time, for lab, engine and simulator
"""

from typing import TYPE_CHECKING

from slackline._lazy import lazily

if TYPE_CHECKING:
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
    from slackline.faults._network import NetworkState
    from slackline.faults._plan import Plan, RankState, parse_all
    from slackline.faults._scheduler import PlanState, Scheduler
else:
    __getattr__ = lazily(
        __name__,
        {
            "_grammar": "GRAMMAR parse",
            "_model": "ACTIONS NOTHING Action Effects Fault LinkFault NicFault RankFault",
            "_network": "NetworkState",
            "_plan": "Plan RankState parse_all",
            "_scheduler": "PlanState Scheduler",
        },
    )

__all__ = [
    "ACTIONS",
    "GRAMMAR",
    "NOTHING",
    "Action",
    "Effects",
    "Fault",
    "LinkFault",
    "NetworkState",
    "NicFault",
    "Plan",
    "PlanState",
    "RankFault",
    "RankState",
    "Scheduler",
    "parse",
    "parse_all",
]
