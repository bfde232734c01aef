"""Plans of collectives: for each rank, a list of instructions that move and reduce chunks.

_split.py         the rules that cut a buffer into chunks, and a chunk into segments
_shares.py        the weights of a mesh's chunks where the ranks' ports are uneven
_balance.py       new weights from the measured rates of the ranks' ports
_plan.py          a plan: the programs of all ranks, and one member's part of it; the collectives,
                  and the instructions with their one-token text
algorithms/       ring, chain, torus, halving-doubling, hierarchical, ...
_sum_tree.py      a fixed binary tree that adds contributions of any number of ranks
_table.py         the table of plans: a variant is a row
_trace.py         an order in which a plan can run, receives matched to sends
_validate.py      the check that a plan computes its collective, or the first fault in it
_grid.py          a plan printed as a grid
choice/           estimated and measured times of plans, and the choice of the cheapest
"""

from typing import TYPE_CHECKING

from slackline._lazy import lazily

if TYPE_CHECKING:
    from slackline.plan.collective._balance import (
        Balance,
        Traffic,
        observe,
        port_rates,
        rebalance,
        round_pace,
    )
    from slackline.plan.collective._grid import grid
    from slackline.plan.collective._plan import (
        NOBODY,
        Collective,
        CollectivePlan,
        Instruction,
        Kind,
        Part,
        Program,
    )
    from slackline.plan.collective._shares import WHOLE, equal_shares, port_time, shares
    from slackline.plan.collective._split import LINE_BYTES, Cutting, cutting, split
    from slackline.plan.collective._sum_tree import MOST_LEAVES, Node, Runs, SumTree, even_runs
    from slackline.plan.collective._table import (
        PLANS,
        TREE_NUMBERS,
        Generator,
        generate,
        name_of_number,
        names,
        part,
    )
    from slackline.plan.collective._trace import Cell, Event, Trace, trace
    from slackline.plan.collective._validate import Fault, Verdict, check, validate
    from slackline.plan.collective.algorithms.hierarchical import hierarchical
    from slackline.plan.collective.algorithms.tree import TREE, tree_part, tree_plan
    from slackline.plan.collective.choice import (
        Choice,
        CostParameters,
        Estimate,
        Order,
        Timing,
        choose,
        estimate,
        expected_ns,
        fastest,
    )
else:
    __getattr__ = lazily(
        __name__,
        {
            "_balance": "Balance Traffic observe port_rates rebalance round_pace",
            "_grid": "grid",
            "_plan": "NOBODY Collective CollectivePlan Instruction Kind Part Program",
            "_shares": "WHOLE equal_shares port_time shares",
            "_split": "LINE_BYTES Cutting cutting split",
            "_sum_tree": "MOST_LEAVES Node Runs SumTree even_runs",
            "_table": "PLANS TREE_NUMBERS Generator generate name_of_number names part",
            "_trace": "Cell Event Trace trace",
            "_validate": "Fault Verdict check validate",
            "algorithms.hierarchical": "hierarchical",
            "algorithms.tree": "TREE tree_part tree_plan",
            "choice": (
                "Choice CostParameters Estimate Order Timing choose estimate expected_ns fastest"
            ),
        },
    )

__all__ = [
    "Balance",
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
    "LINE_BYTES",
    "MOST_LEAVES",
    "NOBODY",
    "Node",
    "Order",
    "PLANS",
    "Part",
    "Program",
    "Runs",
    "SumTree",
    "TREE",
    "TREE_NUMBERS",
    "Timing",
    "Trace",
    "Traffic",
    "Verdict",
    "WHOLE",
    "check",
    "choose",
    "cutting",
    "equal_shares",
    "estimate",
    "even_runs",
    "expected_ns",
    "fastest",
    "generate",
    "grid",
    "hierarchical",
    "name_of_number",
    "names",
    "observe",
    "part",
    "port_rates",
    "port_time",
    "rebalance",
    "round_pace",
    "shares",
    "split",
    "trace",
    "tree_part",
    "tree_plan",
    "validate",
]
