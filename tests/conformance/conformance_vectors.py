"""The test vectors that all executors share: inputs that depend only on the case, and the bits of
the results."""

import ctypes
import itertools
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from slackline.nic import Group, NicOptions
from slackline.plan.collective import CollectivePlan, generate
from slackline.testing.reference import (
    Array,
    bfloat16_bits,
    execute,
    numpy_dtype,
    reduce_arrays,
)
from slackline.wire import Collective, DType, ReduceOp

Order = Literal["rank", "any"]

HALVES = (DType.FLOAT16, DType.BFLOAT16)
FLOATS = (DType.FLOAT32, DType.FLOAT64, *HALVES)
PLANS = ("direct", "mesh", "ring", "reduce-broadcast", "halving-doubling", "torus", "flat-tree")
RANK_ORDERED = ("direct", "mesh", "reduce-broadcast", "flat-tree")
RAILS = ("shm", "tcp")
COUNTS = (0, 1, 3, 17, 1000, 4099)
LONG = 300_007
"""A length that gives several segments on every rail and is no multiple of a segment or line."""
MOST_RANKS = 8

REDUCTIONS = tuple(
    (dtype, op)
    for dtype in DType
    for op in ReduceOp
    if op is not ReduceOp.NONE
    and not (dtype in FLOATS and op >= ReduceOp.BAND)
    and not (dtype is DType.BOOL and op is ReduceOp.AVG)
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A reduction of vectors: element type, operation and length."""

    dtype: DType
    op: ReduceOp
    count: int
    special: bool = False
    """Use special values such as NaN and infinities; `count` is then ignored."""

    def inputs(self, ranks: int) -> tuple[Array, ...]:
        if self.special:
            return special_vectors(self.dtype, ranks)
        return vectors(self.dtype, self.count, MOST_RANKS)[:ranks]

    def expected(self, plan: str, ranks: int, order: Order) -> Array:
        """Return the result that every rank must have after an all_reduce."""
        return _expected(self, plan, ranks, order)


EVERY_CASE = tuple(
    Case(dtype=dtype, op=op, count=count) for dtype, op in REDUCTIONS for count in COUNTS
)
LONG_CASES = tuple(
    Case(dtype=dtype, op=op, count=LONG)
    for dtype, op in REDUCTIONS
    if op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX)
)
SPECIAL_CASES = tuple(
    Case(dtype=dtype, op=op, count=0, special=True) for dtype, op in REDUCTIONS if dtype in FLOATS
)
FEW_CASES = (
    *(Case(dtype=dtype, op=op, count=17) for dtype, op in REDUCTIONS),
    *(
        Case(dtype=dtype, op=ReduceOp.SUM, count=count)
        for dtype in (DType.FLOAT32, DType.BFLOAT16, DType.INT8)
        for count in (*COUNTS, LONG)
    ),
    *(case for case in SPECIAL_CASES if case.op in (ReduceOp.AVG, ReduceOp.MIN)),
)
"""A small selection of all cases, for quick test runs."""


@cache
def vectors(dtype: DType, count: int, ranks: int) -> tuple[Array, ...]:
    """Return `ranks` vectors of `count` random numbers."""
    generator = np.random.default_rng([dtype, count])
    if dtype in FLOATS:
        values = generator.standard_normal((ranks, count)).astype(np.float32)
        if dtype is DType.BFLOAT16:
            return tuple(bfloat16_bits(row) for row in values)
        return tuple(row.astype(numpy_dtype(dtype)) for row in values)
    if dtype is DType.BOOL:
        return tuple(generator.integers(0, 2, (ranks, count)) > 0)
    info = np.iinfo(numpy_dtype(dtype))
    drawn = generator.integers(info.min, info.max, (ranks, count), info.dtype, endpoint=True)
    return tuple(drawn)


@cache
def special_vectors(dtype: DType, ranks: int) -> tuple[Array, ...]:
    """Return vectors in which ranks 0 and 1 have every pair of special values, and the other ranks
    have each value often."""
    values = special_values(dtype)
    pairs = np.array(list(itertools.product(range(len(values)), repeat=2)))
    columns = [pairs[:, 0], pairs[:, 1]]
    while len(columns) < ranks:
        columns.append((columns[-2] * 3 + columns[-1] + len(columns)) % len(values))
    return tuple(np.ascontiguousarray(values[column]) for column in columns[:ranks])


def special_values(dtype: DType) -> Array:
    """Return zeros of both signs, infinities, NaNs of both signs and two payloads, the largest and
    smallest values, and values that round."""
    if dtype is DType.BFLOAT16:
        bits = [0x0000, 0x8000, 0x3F80, 0xBF80, 0x7F80, 0xFF80, 0x7FC0, 0x7F7F, 0xFF7F, 0xFFD5]
        return np.array([*bits, 0x0001, 0x8001, 0x0080, 0x3F81, 0x3B80], np.uint16)
    info = np.finfo(numpy_dtype(dtype))
    values = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, info.max, info.min]
    values += [info.smallest_subnormal, -info.smallest_subnormal, info.smallest_normal]
    array = np.array([*values, 1 + info.eps, info.eps / 2, -np.nan], info.dtype)
    array.view(f"u{info.dtype.itemsize}")[-1] |= 0x15
    return array


@cache
def _expected(case: Case, plan: str, ranks: int, order: Order) -> Array:
    inputs = case.inputs(ranks)
    if order == "rank" and plan in RANK_ORDERED:
        return reduce_arrays(inputs, case.op, case.dtype)
    outputs = execute(
        all_reduce_plan(plan, ranks), [(x,) for x in inputs], case.op, case.dtype, order=order
    )
    return outputs[0][0]


@cache
def all_reduce_plan(name: str, ranks: int) -> CollectivePlan:
    return generate(Collective.ALL_REDUCE, name, ranks)


def same_bits(found: Array, expected: Array, dtype: DType) -> bool:
    """Return whether two arrays have equal bits, so that zeros of different sign differ, and NaNs
    of different payload."""
    assert found.dtype in (numpy_dtype(dtype), expected.dtype)
    return (
        found.dtype == expected.dtype
        and found.shape == expected.shape
        and found.tobytes() == expected.tobytes()
    )


THREAD_MODES = 16
_LIBM = ctypes.CDLL("libm.so.6")
_FLUSH = {"x86_64": (1 << 15, 1 << 6), "aarch64": (1 << 24, 1 << 19)}
_ROUNDING = {"x86_64": 13, "aarch64": 22}
_CONTROL = {"x86_64": 7, "aarch64": 0}
"""The index of the word with the modes in the C library's fenv_t."""


@contextmanager
def thread_modes(number: int) -> Iterator[None]:
    """Set floating-point modes 0 to 15 on the calling thread for the context: each combination of
    flushing subnormal results, flushing subnormal operands, and the four roundings. 0 is the
    default. Check at the end that the thread still has these modes."""
    machine = platform.machine()
    before, changed, after = ((ctypes.c_uint32 * 8)() for _ in range(3))
    _LIBM.fegetenv(before)
    ctypes.memmove(changed, before, ctypes.sizeof(before))
    flush = sum(bit for at, bit in enumerate(_FLUSH[machine]) if number >> at & 1)
    control = flush | number >> 2 << _ROUNDING[machine]
    changed[_CONTROL[machine]] |= control
    _LIBM.fesetenv(changed)
    try:
        yield
    finally:
        _LIBM.fegetenv(after)
        _LIBM.fesetenv(before)
    kept = after[_CONTROL[machine]] & control
    assert kept == control, f"the modes {control:#x} of the thread became {kept:#x}"


def options(**changes: Any) -> NicOptions:
    """Return the default options with an arena small enough for eight ranks in one process."""
    return NicOptions(**{"arena_bytes": 256 << 20, **changes})


class Memory:
    """The memory for the buffers of an operation: registered memory of the group, or private
    memory."""

    def __init__(self, group: Group, *, registered: bool) -> None:
        self._group = group
        self._registered = registered
        self._addresses: list[int] = []
        self._private: list[Array] = []

    def hold(self, array: Array) -> Array:
        """Return a copy of `array` in this memory. The copy is valid until the memory is freed."""
        if not self._registered or array.nbytes == 0:
            self._private.append(array.copy())
            return self._private[-1]
        address = self._group.allocate(array.nbytes)
        self._addresses.append(address)
        held: Array = np.frombuffer(
            memoryview((ctypes.c_byte * array.nbytes).from_address(address)), dtype=array.dtype
        )
        held[:] = array
        return held

    def empty(self, count: int, dtype: DType) -> Array:
        """Return an array of `count` elements, filled with a pattern that no result contains."""
        return self.hold(np.full(count * dtype.itemsize, 0x55, np.uint8).view(numpy_dtype(dtype)))

    def give_back(self) -> None:
        for address in self._addresses:
            self._group.free(address)
        self._addresses.clear()
        self._private.clear()


@contextmanager
def memory(group: Group, *, registered: bool) -> Iterator[Memory]:
    """Provide memory and free it at the end of the context. The arrays in this memory must not be
    used afterwards."""
    held = Memory(group, registered=registered)
    try:
        yield held
    finally:
        held.give_back()


def at(array: Array) -> int:
    """Return the address of the first element of `array`."""
    return int(array.ctypes.data)
