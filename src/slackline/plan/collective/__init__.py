"""Plans of collectives: for each rank, a list of instructions that move and reduce chunks.

_collective.py    the collectives, and which rank starts with and must end with which chunk
_instruction.py   SEND, ADD, COPY, HOLD, FOLD and their one-token text
_split.py         the rule that cuts a buffer into chunks, evenly or by weights
_segments.py      the rule that cuts a chunk into segments
_shares.py        the weights of a mesh's chunks where the ranks' ports are uneven
_plan.py          a plan: the programs of all ranks, and one member's part of it
_straight.py _ring.py _chain.py _halving.py _torus.py _star.py _dissemination.py
                  the algorithms
_hierarchical.py  an all_reduce within hosts and between them, made as it is asked for
_table.py         the table of plans: a variant is a row
_trace.py         an order in which a plan can run, receives matched to sends
_validate.py      the check that a plan computes its collective, or the first fault in it
_grid.py          a plan printed as a grid
_cost.py _choose.py     a plan's estimated cost, and the choice of the cheapest
_formula.py       the same costs of all-reduce plans by formulas, for many ranks
_measured.py      the choice among plans whose times were measured
"""

from slackline.plan.collective._choose import Choice, Order, choose
from slackline.plan.collective._collective import Collective
from slackline.plan.collective._cost import CostParameters, Estimate, estimate
from slackline.plan.collective._formula import expected_ns
from slackline.plan.collective._grid import grid
from slackline.plan.collective._hierarchical import hierarchical
from slackline.plan.collective._instruction import NOBODY, Instruction, Kind
from slackline.plan.collective._measured import Timing, fastest
from slackline.plan.collective._plan import CollectivePlan, Part, Program
from slackline.plan.collective._segments import Cutting, cutting
from slackline.plan.collective._shares import WHOLE, equal_shares, port_time, shares
from slackline.plan.collective._split import LINE_BYTES, split
from slackline.plan.collective._table import PLANS, Generator, generate, names, part
from slackline.plan.collective._trace import Cell, Event, Trace, trace
from slackline.plan.collective._validate import Fault, Verdict, check, validate

__all__ = [
    "LINE_BYTES",
    "NOBODY",
    "PLANS",
    "WHOLE",
    "Cell",
    "Choice",
    "Collective",
    "CollectivePlan",
    "CostParameters",
    "Cutting",
    "Estimate",
    "Event",
    "Fault",
    "Generator",
    "Instruction",
    "Kind",
    "Order",
    "Part",
    "Program",
    "Timing",
    "Trace",
    "Verdict",
    "check",
    "choose",
    "cutting",
    "equal_shares",
    "estimate",
    "expected_ns",
    "fastest",
    "generate",
    "grid",
    "hierarchical",
    "names",
    "part",
    "port_time",
    "shares",
    "split",
    "trace",
    "validate",
]
