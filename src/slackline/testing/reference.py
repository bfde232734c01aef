"""A reference in NumPy for the engine's reductions, bit for bit: the numerics contract as code.

Elements are accumulated in their own type, except that fp16 and bf16 are accumulated in fp32. In
rank order the value is ((x0 op x1) op x2) ... in that type. AVG then divides by the number of ranks
(integers are rounded towards zero). One rounding, to nearest even, converts the value back to the
element type. In a plan's own order ("any"), every ADD rounds its result, and the last ADD divides
before it rounds. In a tree every addition of two nodes rounds; AVG then divides the sum by the
number of leaves, and rounds once more.

MIN is (a < b or a is NaN) ? a : b, and MAX likewise, where a is the incoming or accumulated value.
The result is therefore NaN if any element is NaN. A NaN of SUM, AVG or PROD is the quiet NaN with
sign and payload zero; MIN and MAX keep the bits of the NaN that they choose. Integers wrap. On
bool, SUM and MAX are the logical "or", PROD and MIN are "and", and AVG is an error.

NumPy has no bfloat16, so arrays of bfloat16 are uint16 arrays of the elements' bits.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from slackline.errors import UsageError
from slackline.plan.collective import Collective, CollectivePlan, Event, Kind, Runs, split, trace
from slackline.wire import DType, ReduceOp

__all__ = [
    "Array",
    "PlanArithmetic",
    "bfloat16_bits",
    "bfloat16_values",
    "execute",
    "reduce_arrays",
    "reduce_nodes",
    "numpy_dtype",
]

Array = NDArray[Any]

_TYPES: dict[DType, type[np.generic]] = {
    DType.FLOAT32: np.float32,
    DType.FLOAT64: np.float64,
    DType.FLOAT16: np.float16,
    DType.BFLOAT16: np.uint16,
    DType.INT8: np.int8,
    DType.INT16: np.int16,
    DType.INT32: np.int32,
    DType.INT64: np.int64,
    DType.UINT8: np.uint8,
    DType.UINT16: np.uint16,
    DType.UINT32: np.uint32,
    DType.UINT64: np.uint64,
    DType.BOOL: np.bool_,
}
_HALVES = (DType.FLOAT16, DType.BFLOAT16)
_FLOATS = (*_HALVES, DType.FLOAT32, DType.FLOAT64)
_BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
_ON_BOOL = {
    ReduceOp.SUM: np.logical_or,
    ReduceOp.MAX: np.logical_or,
    ReduceOp.BOR: np.logical_or,
    ReduceOp.PROD: np.logical_and,
    ReduceOp.MIN: np.logical_and,
    ReduceOp.BAND: np.logical_and,
    ReduceOp.BXOR: np.not_equal,
}
_ON_NUMBERS = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVG: np.add,
    ReduceOp.PROD: np.multiply,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """Return the NumPy type of arrays with elements of type `dtype`; uint16 for bfloat16."""
    return np.dtype(_TYPES[dtype])


def bfloat16_values(bits: Array) -> NDArray[np.float32]:
    """Convert bfloat16 bits to float32 values, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round float32 values to bfloat16 bits, to nearest even; a NaN keeps its upper bits."""
    wide = np.ascontiguousarray(values).view(np.uint32)
    rounded = (wide + np.uint32(0x7FFF) + (wide >> 16 & 1)) >> 16
    return np.where(np.isnan(values), wide >> 16 | 0x40, rounded).astype(np.uint16)


def reduce_arrays(arrays: Sequence[Array], op: ReduceOp, dtype: DType) -> Array:
    """Return the reduction of `arrays`, one array for each rank, in rank order.

    Raises UsageError if the operation is not defined for the type.
    """
    _check(op, dtype)
    total = _widen(arrays[0], dtype)
    for array in arrays[1:]:
        total = _combine(total, _widen(array, dtype), op, dtype)
    return _finish(total, len(arrays), op, dtype)


def reduce_nodes(nodes: Sequence[Array], runs: Runs, op: ReduceOp, dtype: DType) -> Array:
    """Return the reduction of all ranks' nodes in the tree of `runs`.

    Raises UsageError if the operation is not defined for the type.
    """
    _check(op, dtype)
    waiting: list[Array] = []
    for node, sums in zip(nodes, runs.sums, strict=True):
        waiting.append(node)
        for _ in range(sums):
            right, left = _widen(waiting.pop(), dtype), _widen(waiting.pop(), dtype)
            waiting.append(_round(_combine(left, right, op, dtype), dtype))
    total = _widen(waiting.pop(), dtype)
    if dtype in _FLOATS and op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PROD):
        total = np.where(np.isnan(total), total.dtype.type(np.nan), total)
    return _finish(total, runs.tree.leaves, op, dtype)


def execute(
    plan: CollectivePlan,
    inputs: Sequence[Sequence[Array]],
    op: ReduceOp,
    dtype: DType,
    *,
    order: Literal["rank", "any"] = "any",
) -> tuple[tuple[Array, ...], ...]:
    """Run the plan as the engine does; each rank gives and gets a sequence of flat arrays.

        collective                   input of a rank            output of a rank
        all_reduce                   (buffer)                   (buffer)
        all_reduce in a tree         a buffer for each node     (buffer)
        broadcast, point_to_point    root (buffer), others ()   (buffer); the sending rank's too
        reduce                       (buffer)                   root (buffer), others ()
        reduce_scatter               n parts                    (part)
        all_gather                   (part)                     n parts
        gather                       (part)                     root n parts, others ()
        scatter                      root n parts, others ()    (part)
        all_to_all                   n parts                    n parts
        barrier                      ()                         ()

    `order="rank"` keeps partial sums of fp16 and bf16 in fp32 until the last ADD, as the engine
    does if its bits must equal the bits of `reduce_arrays`. `op` is NONE if nothing is reduced.
    Inputs are not changed.
    """
    if plan.collective.reduces and plan.collective is not Collective.BARRIER:
        _check(op, dtype)
    run = _Run(plan, op, dtype, wide=order == "rank")
    for rank, arrays in enumerate(inputs):
        run.load(rank, arrays)
    for event in trace(plan).events:
        run.step(event)
    return tuple(run.unload(rank) for rank in range(plan.ranks))


Value = tuple[Array, bool]
"""An array, and whether the array is a partial sum in the accumulation type."""


class PlanArithmetic:
    """The reductions of one plan with the engine's arithmetic, for any executor of the plan."""

    def __init__(self, plan: CollectivePlan, op: ReduceOp, dtype: DType, *, wide: bool) -> None:
        """Reduce `dtype` elements by `op`; with `wide`, partial sums of fp16 and bf16 stay fp32."""
        self._ranks, self._op, self._dtype, self._wide = plan.ranks, op, dtype, wide
        self._runs = plan.runs
        self._empty = plan.collective is Collective.BARRIER

    def add(self, incoming: Value, mine: Value, *, last: bool) -> Value:
        """Return the result of an ADD; `last` says whether the chunk is complete afterwards."""
        if self._empty:
            return mine
        sides = [array if wide else _widen(array, self._dtype) for array, wide in (incoming, mine)]
        total = _combine(sides[0], sides[1], self._op, self._dtype)
        if last:
            return _finish(total, self._ranks, self._op, self._dtype), False
        return (total, True) if self._wide else (_round(total, self._dtype), False)

    def reduce(self, values: Sequence[Value]) -> Value:
        """Return the result of a REDUCE_ALL over the values of all ranks, or of all nodes."""
        arrays = [array for array, _ in values]
        if self._runs is not None:
            return reduce_nodes(arrays, self._runs, self._op, self._dtype), False
        return arrays[0] if self._empty else reduce_arrays(arrays, self._op, self._dtype), False


class _Run:
    """The chunks of all ranks during one run of a plan."""

    def __init__(self, plan: CollectivePlan, op: ReduceOp, dtype: DType, *, wide: bool) -> None:
        self._plan, self._dtype = plan, dtype
        self._arithmetic = PlanArithmetic(plan, op, dtype, wide=wide)
        self._mine: dict[tuple[int, int], Value] = {}
        self._held: dict[tuple[int, int], dict[int, Value]] = {}
        self._sent: dict[tuple[int, int], Value] = {}

    def load(self, rank: int, arrays: Sequence[Array]) -> None:
        plan = self._plan
        if plan.runs is not None:
            for node, array in zip(plan.contributions(rank), arrays, strict=True):
                for part, (low, size) in enumerate(self._split(array.size)):
                    place = rank, part + plan.ranks * node
                    self._mine[place] = (array[low : low + size], False)
            return
        chunks = [
            chunk
            for chunk in range(plan.chunks)
            if plan.collective.has(rank, chunk, plan.ranks, plan.root)
        ]
        if plan.collective is Collective.BARRIER:
            arrays = (np.empty(0, numpy_dtype(self._dtype)),)
        if plan.collective.splits and chunks:
            (buffer,) = arrays
            arrays = [buffer[low : low + size] for low, size in self._split(buffer.size)]
        for chunk, array in zip(chunks, arrays, strict=True):
            self._mine[rank, chunk] = (array, False)

    def unload(self, rank: int) -> tuple[Array, ...]:
        plan = self._plan
        parts = [
            self._mine[rank, chunk][0].copy()
            for chunk in range(plan.chunks if plan.runs is None else plan.ranks)
            if plan.collective.due(rank, chunk, plan.ranks, plan.root)
            or (plan.collective is Collective.POINT_TO_POINT and rank == plan.root)
        ]
        if plan.collective is Collective.BARRIER:
            return ()
        return (np.concatenate(parts),) if plan.collective.splits and parts else tuple(parts)

    def step(self, event: Event) -> None:
        rank, instruction = event.cell[0], event.instruction
        place = rank, instruction.chunk
        if instruction.kind is Kind.SEND:
            self._sent[event.cell] = self._mine[place]
            return
        if instruction.kind is Kind.REDUCE_ALL:
            own = {
                each: self._mine[self._place(rank, instruction.chunk, each)]
                for each in self._plan.contributions(rank)
                if rank < self._plan.ranks
            }
            everyone = self._held.pop(place, {}) | own
            self._mine[place] = self._arithmetic.reduce([everyone[r] for r in sorted(everyone)])
            return
        assert event.sent_by is not None
        incoming = self._sent[event.sent_by]
        if instruction.kind is Kind.COPY:
            self._mine[place] = incoming
        elif instruction.kind is Kind.BUFFER:
            waits = rank, self._plan.strand(instruction)
            tree = self._plan.runs is not None
            of = instruction.chunk // self._plan.ranks if tree else instruction.peer
            self._held.setdefault(waits, {})[of] = incoming
        else:
            mine = self._mine[place]
            self._mine[place] = self._arithmetic.add(incoming, mine, last=instruction.last)

    def _place(self, rank: int, chunk: int, contribution: int) -> tuple[int, int]:
        """Return the place of what a rank contributes to the sum of a chunk."""
        tree = self._plan.runs is not None
        return rank, chunk + self._plan.ranks * contribution if tree else chunk

    def _split(self, count: int) -> tuple[tuple[int, int], ...]:
        parts = self._plan.chunks if self._plan.runs is None else self._plan.ranks
        return split(count, parts, self._dtype.itemsize, self._plan.weights)


def _check(op: ReduceOp, dtype: DType) -> None:
    wrong = (
        op is ReduceOp.NONE
        or (op in _BITWISE and dtype in _FLOATS)
        or (op is ReduceOp.AVG and dtype is DType.BOOL)
    )
    if wrong:
        raise UsageError(f"{dtype.name.lower()} has no reduction {op.name}")


def _widen(array: Array, dtype: DType) -> Array:
    """Convert elements to the accumulation type."""
    if dtype is DType.BFLOAT16:
        return bfloat16_values(array)
    return array.astype(np.float32) if dtype is DType.FLOAT16 else array


def _round(total: Array, dtype: DType) -> Array:
    """Convert values of the accumulation type back to elements, rounding to nearest even."""
    if dtype is DType.BFLOAT16:
        return bfloat16_bits(total)
    with np.errstate(over="ignore", under="ignore"):
        return total.astype(np.float16) if dtype is DType.FLOAT16 else total


def _combine(a: Array, b: Array, op: ReduceOp, dtype: DType) -> Array:
    """Combine `a`, the received or accumulated value, with `b`, the next rank's own value."""
    if dtype is DType.BOOL:
        return np.asarray(_ON_BOOL[op](a, b))
    if op in (ReduceOp.MIN, ReduceOp.MAX):
        better = a < b if op is ReduceOp.MIN else a > b
        return np.where(better | (a != a), a, b)
    with np.errstate(all="ignore"):
        total = np.asarray(_ON_NUMBERS[op](a, b))
    if dtype in _FLOATS:
        total[np.isnan(total)] = np.nan
    return total


def _finish(total: Array, ranks: int, op: ReduceOp, dtype: DType) -> Array:
    """Divide if the operation is AVG, then round once."""
    if op is ReduceOp.AVG and dtype in _FLOATS:
        with np.errstate(all="ignore"):
            total = total / total.dtype.type(ranks)
    elif op is ReduceOp.AVG:
        wide = np.uint64 if total.dtype == np.uint64 else np.int64
        quotient, rest = np.divmod(total.astype(wide), wide(ranks))
        quotient += ((total < 0) & (rest != 0)).astype(wide)
        total = quotient.astype(total.dtype)
    return _round(total, dtype)
