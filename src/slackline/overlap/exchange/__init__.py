"""The transport of a model's gradients: a NIC engine's group, or a torch process group.

_interface      the interface, and its implementation on a NIC engine
_nodes          its variant in which a rank has several virtual ranks
  _part_sums    the sums of its virtual ranks, in the order of the tree
_pending        the handle of a reduction
_staged         the one on a NIC engine, for gradients on an accelerator
_staged_nodes   the one of several virtual ranks, for gradients on an accelerator
_process_group  its implementation on a torch process group
_opening        the choice of one of them
_narrow         gradients that travel as bf16
_order          a fixed order of posts, for transports that match reductions by their order
_layout         tensors in memory
_rank_averages  averages of a few figures over the ranks
"""

from slackline.overlap.exchange._interface import Exchange, wire_type
from slackline.overlap.exchange._layout import is_dense, layout
from slackline.overlap.exchange._narrow import check_communicate, sent_type
from slackline.overlap.exchange._nodes import NodeExchange
from slackline.overlap.exchange._opening import open_exchange
from slackline.overlap.exchange._order import InOrder
from slackline.overlap.exchange._part_sums import PartGradient, Whole
from slackline.overlap.exchange._pending import Pending
from slackline.overlap.exchange._rank_averages import Average, RankAverages

__all__ = [
    "Average",
    "Exchange",
    "InOrder",
    "NodeExchange",
    "PartGradient",
    "Pending",
    "RankAverages",
    "Whole",
    "check_communicate",
    "is_dense",
    "layout",
    "open_exchange",
    "sent_type",
    "wire_type",
]
