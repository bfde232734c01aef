"""What circuits are asked to sum, and whether they can be simulated here."""

from conformance_vectors import EVERY_CASE, LONG_CASES, SPECIAL_CASES

from slackline import circuit
from slackline.circuit import ELEMENTS
from slackline.errors import UsageError
from slackline.wire import ReduceOp

SUMS = [
    case
    for case in (*EVERY_CASE, *SPECIAL_CASES)
    if case.op is ReduceOp.SUM and case.dtype in ELEMENTS and (case.special or case.count > 0)
]
LONG_SUMS = [case for case in LONG_CASES if case.op is ReduceOp.SUM and case.dtype in ELEMENTS]


def missing() -> str | None:
    """Why the circuit cannot be simulated here, or None."""
    try:
        _ = circuit.AggregationNode
    except UsageError as error:
        return str(error)
    return circuit.missing_tools()
