"""A random test scenario made from a seed: ranks, rails between them, faults with their times, and
operations.

The faults are the faults of the fault matrix, with random links and times; a link that is down is
restored within 150 ms. The allreduces of a batch run concurrently with different tags, and each
rank posts a batch in its own order.
"""

import dataclasses
import random
from dataclasses import dataclass

from conformance_vectors import RANK_ORDERED, REDUCTIONS, THREAD_MODES, Array, vectors
from matrix_table import FAULTS, RAILS

from slackline.faults import Fault, LinkFault, NicFault, Plan, parse
from slackline.nic import NicOptions
from slackline.testing.reference import reduce_arrays
from slackline.wire import DType, ReduceOp

__all__ = ["OPERATIONS", "Operation", "World", "draw_world"]

OPERATIONS = 25
"""The number of operations in a scenario."""
MOST_RANKS = 4
_LONGEST = 300_000
_SHIFTS = 1000
_MS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An allreduce with its tag, length, type and way of calling."""

    tag: int
    count: int
    dtype: DType
    op: ReduceOp
    in_place: bool
    registered: bool
    shift: int
    modes: int
    """The floating-point modes of rank 0's thread; each further rank has those of the next number,
    modulo THREAD_MODES."""

    def inputs(self, ranks: int) -> list[Array]:
        """Return the contribution of each rank: a part of the vectors of this type."""
        pool = vectors(self.dtype, _LONGEST + _SHIFTS, MOST_RANKS)
        return [whole[self.shift : self.shift + self.count] for whole in pool[:ranks]]

    def expected(self, ranks: int) -> Array:
        return reduce_arrays(self.inputs(ranks), self.op, self.dtype)


@dataclass(frozen=True, kw_only=True)
class World:
    """A random scenario, which depends only on its seed."""

    seed: int
    ranks: int
    rail: str
    plan: str
    segment_bytes: int
    faults: Plan
    batches: tuple[tuple[Operation, ...], ...]

    @property
    def options(self) -> NicOptions:
        return RAILS[self.rail].options(
            faults=str(self.faults),
            plan=self.plan,
            wire_segment_bytes=self.segment_bytes,
            memory_segment_bytes=self.segment_bytes,
        )

    def order(self, rank: int, batch: int) -> list[int]:
        """Return the order in which the rank posts the operations of a batch."""
        places = list(range(len(self.batches[batch])))
        random.Random(f"{self.seed} {rank} {batch}").shuffle(places)
        return places

    def __str__(self) -> str:
        return (
            f"the world of seed {self.seed}: {self.ranks} ranks over {self.rail}, plan "
            f"{self.plan}, segments of {self.segment_bytes}, {self.faults}"
        )


def draw_world(seed: int) -> World:
    dice = random.Random(seed)
    ranks = dice.randint(2, MOST_RANKS)
    rail = dice.choice(list(RAILS))
    kinds = [text for text, rails in FAULTS.values() if rail in rails]
    faults = [
        _draw_fault(dice, parse(text), ranks, RAILS[rail].nics)
        for text in dice.choices(kinds, k=dice.randint(1, 3))
    ]
    operations = [_draw_operation(dice, tag) for tag in range(OPERATIONS)]
    return World(
        seed=seed,
        ranks=ranks,
        rail=rail,
        plan=dice.choice(RANK_ORDERED),
        segment_bytes=dice.choice((4096, 64 << 10, 128 << 10)),
        faults=Plan(tuple(faults)),
        batches=tuple(_cut(dice, operations)),
    )


def _draw_fault(dice: random.Random, kind: Fault, ranks: int, nics: int) -> Fault:
    assert isinstance(kind, LinkFault | NicFault)
    breaks = kind.effects.down or isinstance(kind, NicFault)
    when = {
        "start_ns": dice.choice((0, dice.randrange(50) * _MS)),
        "length_ns": dice.randint(30, 150 if breaks else 400) * _MS,
        "effects": dataclasses.replace(kind.effects, seed=dice.randrange(1000)),
    }
    if isinstance(kind, NicFault):
        where = {"host": dice.randrange(ranks), "nic": dice.randrange(nics)}
    else:
        where = dict(zip(("source", "target"), dice.sample(range(ranks), 2), strict=True))
    return dataclasses.replace(kind, **where, **when)


def _draw_operation(dice: random.Random, tag: int) -> Operation:
    longest = dice.choices((16, 2000, 60_000, _LONGEST), (30, 30, 25, 15))[0]
    dtype, op = dice.choice(REDUCTIONS)
    return Operation(
        tag=tag,
        count=dice.randint(1, longest),
        dtype=dtype,
        op=op,
        in_place=dice.random() < 0.5,
        registered=dice.random() < 0.3,
        shift=dice.randrange(_SHIFTS),
        modes=dice.randrange(THREAD_MODES),
    )


def _cut(dice: random.Random, operations: list[Operation]) -> list[tuple[Operation, ...]]:
    batches = []
    while operations:
        size = dice.randint(1, 6)
        batches.append(tuple(operations[:size]))
        operations = operations[size:]
    return batches
