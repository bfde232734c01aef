"""Which plan an operation runs, and the plans compiled for this rank."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import slackline._native as _native
from slackline.nic._calibration import parameters_from, timings_from
from slackline.nic._chunks import chunk_between
from slackline.nic._options import NicOptions
from slackline.plan.collective import (
    PLANS,
    Choice,
    Collective,
    CollectivePlan,
    CostParameters,
    Kind,
    Part,
    Timing,
    choose,
    estimate,
    fastest,
    generate,
    names,
    part,
)
from slackline.wire import DType, ReduceOp

__all__ = ["RING", "STAR", "PlanBook", "Selected", "compile_program", "plan_number", "starts"]

_log = logging.getLogger("slackline.nic")

_HALF_TYPES = (DType.FLOAT16, DType.BFLOAT16)
_SPLITS = (Collective.ALL_REDUCE, Collective.REDUCE, Collective.BROADCAST, Collective.BARRIER)
_FIXED = {
    Collective.REDUCE_SCATTER: "mesh",
    Collective.ALL_GATHER: "mesh",
    Collective.GATHER: "direct",
    Collective.SCATTER: "direct",
    Collective.ALL_TO_ALL: "direct",
}
"""One message from each rank to each that needs it: nothing to choose."""
_DIRECT_BARRIER = 8
"""Up to so many ranks everyone tells everyone: by the cost model that is never the slower way, and
who is missing is named at once."""
_MODELLED = 64
"""Up to so many ranks the model has its say on all_reduces; what it counts grows with their square,
and with 1000 ranks would take minutes."""
_SMALLEST_CLASS = 1 << 10
STAR = "star"
"""The plan that needs an aggregator."""
RING, ROTATING_RING = "reduce-broadcast", "ring"
"""The plans that devices of ranks take part in: if nothing else is asked for, and on request."""
_OFFLOADED = {
    ReduceOp.SUM: (DType.FLOAT32, DType.INT32, DType.BFLOAT16, DType.FLOAT16),
    ReduceOp.AVG: (DType.FLOAT32,),
}
"""What devices add; an average of other types is not its sum, rounded, divided. Half types only in
rank order: there, as in devices, their sums stay fp32 until the end."""
_PIECES = {False: 8, True: 128}
"""Segments of a chunk that flows, and of one that an aggregator adds: its result is late by one."""
_LONGEST_SEGMENT = {False: 0, True: 32 << 10}
"""Bytes; 0: as long as the engine lets them be."""


@dataclass(frozen=True, slots=True)
class Selected:
    """A plan for one kind of operation, compiled for this rank."""

    name: str
    reason: str
    program: _native.Program


class PlanBook:
    """Chooses and compiles plans for one group; remembers both."""

    def __init__(
        self,
        rank: int,
        ranks: int,
        options: NicOptions,
        *,
        all_shared: bool,
        one_host: bool,
        device_bytes: int = 0,
    ) -> None:
        """`all_shared`: all links are shared memory; `one_host`: no rank is on another host;
        `device_bytes`: the longest payload that the devices of some ranks take, 0: there are none.
        """
        self.rank = rank
        self.ranks = ranks
        self.order = options.order
        if options.order == "auto":
            self.order = "rank" if all_shared and options.keeps_rank_order() else "any"
        self.device_plan = ROTATING_RING if options.plan == ROTATING_RING else RING
        """What devices of ranks take part in."""
        if device_bytes and self.device_plan == RING:
            self.order = "rank"
        longest = min(device_bytes, options.wire_segment_bytes, options.memory_segment_bytes)
        # A frame of every type is then whole lines of 64 bytes.
        self._device_bytes = 1 << longest.bit_length() - 1 if longest else 0
        self._offloaded: Selected | None = None
        self._asked = "auto" if options.plan == STAR else options.plan
        self._wants_star = options.plan == STAR
        self._star_limit = 0
        self._all_shared = all_shared
        self._preferred: Literal["mesh", "ring"] = "mesh" if one_host else "ring"
        self._timings: tuple[Timing, ...] = ()
        self._parameters: CostParameters | None = None
        self._plans: dict[tuple[Collective, str, int | None], CollectivePlan] = {}
        self._programs: dict[tuple[Collective, str, int | None], _native.Program] = {}
        self._selected: dict[tuple[Collective, int, bool, int | None], Selected] = {}

    def reach_star(self, most_bytes: int) -> None:
        """From now on there is an aggregator, for operations of up to so many bytes."""
        self._star_limit = most_bytes
        self._selected.clear()

    def candidates(self) -> tuple[str, ...]:
        """The all_reduce plans that keep this group's order."""
        every = names(Collective.ALL_REDUCE, helpers=int(self._star_limit > 0))
        if self.order == "any":
            return every
        rows = {name: PLANS[Collective.ALL_REDUCE, name] for name in every}
        return tuple(n for n, row in rows.items() if row.rank_ordered or self.ranks == 1)

    def learn(self, measured: Sequence[int]) -> None:
        """Choose by `measured`, the same on every rank, from now on."""
        self._timings = timings_from(self.candidates(), measured)
        self._parameters = parameters_from(
            self._timings, self.ranks, shared_memory=self._all_shared
        )
        self._selected.clear()

    def all_reduce(self, nbytes: int, dtype: DType, op: ReduceOp) -> Selected:
        """The plan for an all_reduce over `nbytes`."""
        narrow = dtype in _HALF_TYPES and self.order != "rank"
        if not self._device_bytes or not nbytes or narrow or dtype not in _OFFLOADED.get(op, ()):
            return self.select(Collective.ALL_REDUCE, nbytes, dtype)
        if self._offloaded is None:
            plan = self._plan(Collective.ALL_REDUCE, self.device_plan, None)
            program = compile_program(
                part(Collective.ALL_REDUCE, self.device_plan, self.ranks, self.rank),
                longest=self._device_bytes,
                offloads=True,
                opens=starts(plan),
            )
            self._offloaded = Selected(self.device_plan, "ranks have devices that add", program)
        return self._offloaded

    def select(
        self, collective: Collective, nbytes: int, dtype: DType, root: int | None = None
    ) -> Selected:
        """The plan for an operation over `nbytes`; sizes are chosen for by powers of two."""
        size_class = max(_SMALLEST_CLASS, 1 << (nbytes - 1).bit_length()) if nbytes > 0 else 0
        wide = dtype in _HALF_TYPES and self.order == "rank"
        key = collective, size_class, wide, root
        selected = self._selected.get(key)
        if selected is None:
            choice = self._choose(collective, size_class, wide, root)
            program = self.program(collective, choice.name, root)
            selected = self._selected[key] = Selected(choice.name, choice.reason, program)
            _log.debug("%s of %d bytes: %s", collective.label, size_class, choice.reason)
        return selected

    def program(
        self, collective: Collective, name: str, root: int | None = None
    ) -> _native.Program:
        """This rank's part of the plan called `name`, compiled."""
        key = collective, name, root
        if key not in self._programs:
            mine = part(collective, name, self.ranks, self.rank, root)
            self._programs[key] = compile_program(mine)
        return self._programs[key]

    def _choose(self, collective: Collective, nbytes: int, wide: bool, root: int | None) -> Choice:
        if collective in _FIXED:
            return Choice(_FIXED[collective], "the only one")
        if collective is Collective.BARRIER:
            few = self.ranks <= _DIRECT_BARRIER
            name = "direct" if few else "dissemination"
            return Choice(name, f"{self.ranks} ranks; direct is for at most {_DIRECT_BARRIER}")
        if collective is Collective.ALL_REDUCE and self._asked != "auto":
            return Choice(self._asked, "asked for by name")
        if collective is Collective.ALL_REDUCE and self._wants_star and nbytes <= self._star_limit:
            return Choice(STAR, "asked for by name")
        if self._parameters is None:
            return Choice(names(collective)[0], "nothing has been measured yet")
        if collective is Collective.ALL_REDUCE:
            # Half types keep fp32 partials on a chain in rank order: twice the bytes of the others.
            left_out = {"reduce-broadcast"} if wide else set()
            if nbytes > self._star_limit:
                left_out.add(STAR)
            timings = [t for t in self._timings if t.name not in left_out]
            expected = None
            if self.ranks <= _MODELLED:
                expected = {
                    t.name: estimate(
                        self._plan(collective, t.name, None), nbytes, self._parameters
                    ).time_ns
                    for t in timings
                }
            return fastest(timings, nbytes, expected, preferred=self._preferred)
        return choose(
            collective,
            self.ranks,
            nbytes,
            "rank" if self.order == "rank" else "any",
            self._parameters,
            root=root,
            accumulate_ratio=2 if wide else 1,
        )

    def _plan(self, collective: Collective, name: str, root: int | None) -> CollectivePlan:
        key = collective, name, root
        if key not in self._plans:
            self._plans[key] = generate(collective, name, self.ranks, root)
        return self._plans[key]


def compile_program(
    part: Part, *, longest: int = 0, offloads: bool = False, opens: Sequence[int] = ()
) -> _native.Program:
    """A member's part of a plan, for the engine.

    `longest`: the most bytes of a frame, 0: the plan's own limit; `offloads`: devices may add;
    `opens`: for each chunk of a plan whose ranks have devices, the rank whose data open it.
    """
    chunks, program = part.chunks, part.program
    if part.collective is Collective.ALL_TO_ALL:
        n = part.ranks
        chunks = 2 * n
        program = tuple(
            replace(i, chunk=chunk_between(i.chunk // n, i.chunk % n, n)) for i in program
        )
    return _native.program(
        part.collective,
        _number(part.collective, part.name, part.helpers),
        part.members,
        part.member,
        chunks,
        part.collective in _SPLITS,
        part.forwards,
        part.adds,
        [(int(i.kind), max(i.peer, 0), i.chunk, i.last) for i in program],
        _PIECES[part.helpers > 0],
        longest or _LONGEST_SEGMENT[part.helpers > 0],
        offloads,
        list(opens),
    )


def starts(plan: CollectivePlan) -> list[int]:
    """For each chunk of a plan that goes round: the rank whose data open it, who receives last."""
    found: dict[int, int] = {}
    for rank, program in enumerate(plan.programs):
        for chunk in range(plan.chunks):
            first = next(instruction for instruction in program if instruction.chunk == chunk)
            if first.kind is Kind.SEND:
                found[chunk] = rank
    return [found[chunk] for chunk in range(plan.chunks)]


def plan_number(plan: CollectivePlan) -> int:
    """What frames carry as the plan's id."""
    return _number(plan.collective, plan.name, plan.helpers)


def _number(collective: Collective, name: str, helpers: int) -> int:
    return names(collective, helpers=helpers).index(name) + 1
