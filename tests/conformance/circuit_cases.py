"""The reductions that circuits are tested with."""

from conformance_vectors import EVERY_CASE, LONG_CASES, SPECIAL_CASES

from slackline.circuit import ELEMENTS
from slackline.wire import ReduceOp

SUMS = [
    case
    for case in (*EVERY_CASE, *SPECIAL_CASES)
    if case.op is ReduceOp.SUM and case.dtype in ELEMENTS and (case.special or case.count > 0)
]
LONG_SUMS = [case for case in LONG_CASES if case.op is ReduceOp.SUM and case.dtype in ELEMENTS]
