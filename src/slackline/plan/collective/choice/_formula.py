"""The cost model of all-reduce plans in formulas, which give the same results as `estimate`.

`estimate` traces a whole plan, whose instructions grow with the square of the ranks: 64 ranks would
each spend seconds on that trace before their first all_reduce. The formulas take microseconds.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from slackline._lazy import record
from slackline.errors import UsageError
from slackline.plan.collective.algorithms.halving import halving_chunks
from slackline.plan.collective.algorithms.torus import torus_shape
from slackline.plan.collective.choice._cost import CostParameters

__all__ = ["expected_ns"]


@record(frozen=True, slots=True)
class _Terms:
    """The work of the busiest rank, in terms of `Estimate`; bytes are fractions of the buffer."""

    steps: int
    messages: int
    mean: float
    """The mean of the messages over all ranks."""
    port: float
    copied: float
    reduced: float


def _direct(n: int) -> _Terms:
    return _Terms(1, 2 * (n - 1), 2 * (n - 1), port=n - 1, copied=1, reduced=n - 1)


def _mesh(n: int) -> _Terms:
    most = (n - 1) / n
    return _Terms(2, 4 * (n - 1), 4 * (n - 1), port=2 * most, copied=2 * most, reduced=most)


def _ring(n: int) -> _Terms:
    most = (n - 1) / n
    return _Terms(2 * (n - 1), 4 * (n - 1), 4 * (n - 1), port=2 * most, copied=1, reduced=most)


def _chain(n: int) -> _Terms:
    # Rank 0 sends its own data and, with more than two ranks, the result.
    return _Terms(2 * (n - 1), min(n, 4), 4 * (n - 1) / n, port=min(n - 1, 2), copied=2, reduced=1)


def _halving_doubling(n: int) -> _Terms:
    paired = halving_chunks(n)
    most, steps = (paired - 1) / paired, 2 * (paired.bit_length() - 1)
    among = 4 * (paired - 1)
    if n == paired:
        return _Terms(steps, among, among, port=2 * most, copied=0.5 + most, reduced=most)
    # A paired rank also adds the data of an extra rank and sends the result there. The extra rank
    # copies most: its own data and the result.
    return _Terms(
        steps + 2,
        among + 2 * paired,
        (paired * among + 4 * (n - paired) * paired) / n,
        port=2 * most + 1,
        copied=2,
        reduced=most + 1,
    )


def _torus(n: int) -> _Terms:
    rows, columns = torus_shape(n)
    most = (n - 1) / n
    messages = 4 * rows * (columns - 1) + 4 * (rows - 1)
    return _Terms(
        2 * (rows + columns - 2),
        messages,
        messages,
        port=2 * most,
        copied=1 / columns + most,
        reduced=most,
    )


def _flat_tree(n: int) -> _Terms:
    return _Terms(2, 2 * (n - 1), 4 * (n - 1) / n, port=n - 1, copied=2, reduced=n - 1)


def _star(n: int) -> _Terms:
    return _Terms(2, 2 * n, 2, port=1, copied=2, reduced=n)


_FORMULAS: Mapping[str, Callable[[int], _Terms]] = MappingProxyType(
    {
        "direct": _direct,
        "mesh": _mesh,
        "ring": _ring,
        "reduce-broadcast": _chain,
        "halving-doubling": _halving_doubling,
        "torus": _torus,
        "flat-tree": _flat_tree,
        "star": _star,
    }
)


def expected_ns(name: str, ranks: int, nbytes: int, parameters: CostParameters) -> int:
    """Return the `time_ns` that `estimate` gives for the all-reduce plan `name`, without the plan.

    The two times are equal where the plan's chunks have equal lengths. Elsewhere the bytes that
    they count differ by at most a line of 64 bytes for each chunk. `ranks` is at least 2. Raises
    UsageError for an unknown name.
    """
    formula = _FORMULAS.get(name)
    if formula is None:
        known = ", ".join(_FORMULAS)
        raise UsageError(f'all_reduce has no plan "{name}"; its plans are {known}')
    terms = formula(ranks)
    copied = terms.copied if parameters.shared_memory else terms.port
    return round(
        parameters.handling_ns(terms.steps, terms.messages, terms.mean)
        + copied * nbytes * 1e9 / parameters.bytes_per_second
        + terms.reduced * nbytes * 1e9 / parameters.reduce_bytes_per_second
    )
