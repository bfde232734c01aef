"""Which plan an operation runs, and the plans compiled for this rank."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from slackline import _native
from slackline.nic._options import NicOptions
from slackline.plan.collective import (
    Collective,
    CollectivePlan,
    CostParameters,
    choose,
    generate,
    names,
)
from slackline.wire import DType, ReduceOp

__all__ = ["PlanBook", "Selected"]

_log = logging.getLogger("slackline.nic")

_HALF_TYPES = (DType.FLOAT16, DType.BFLOAT16)
_FLOATS = (DType.FLOAT32, DType.FLOAT64, *_HALF_TYPES)
_SPLITS = (Collective.ALL_REDUCE, Collective.REDUCE, Collective.BROADCAST, Collective.BARRIER)
_CHOSEN = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE)
_OTHERS = {
    Collective.ALL_GATHER: "mesh",
    Collective.BROADCAST: "direct",
    Collective.GATHER: "direct",
    Collective.SCATTER: "direct",
    Collective.ALL_TO_ALL: "direct",
    Collective.BARRIER: "direct",
}
_SMALLEST_CLASS = 1 << 10


@dataclass(frozen=True, slots=True)
class Selected:
    """A plan for one kind of operation, compiled for this rank."""

    name: str
    reason: str
    program: _native.Program
    rank_ordered: bool


class PlanBook:
    """Chooses and compiles plans for one group; remembers both."""

    def __init__(self, rank: int, ranks: int, options: NicOptions, *, all_shared: bool) -> None:
        self.rank = rank
        self.ranks = ranks
        self.order = options.order
        if options.order == "auto":
            self.order = "rank" if all_shared else "any"
        self._options = options
        self.parameters = CostParameters(
            latency_ns=1500 if all_shared else 15_000,
            bytes_per_second=8e9 if all_shared else 1.5e9,
            reduce_bytes_per_second=6e9,
            per_message_overhead_ns=400 if all_shared else 4_000,
            shared_memory=all_shared,
        )
        self._compiled: dict[tuple[Collective, str, int | None], _native.Program] = {}
        self._plans: dict[tuple[Collective, str, int | None], CollectivePlan] = {}
        self._selected: dict[tuple[Collective, int, bool, bool, int | None], Selected] = {}

    def select(
        self,
        collective: Collective,
        nbytes: int,
        dtype: DType,
        op: ReduceOp,
        root: int | None = None,
    ) -> Selected:
        """The plan for an operation over `nbytes`; sizes are chosen for by powers of two."""
        size_class = max(_SMALLEST_CLASS, 1 << (nbytes - 1).bit_length()) if nbytes > 0 else 0
        order_free = dtype not in _FLOATS
        wide = dtype in _HALF_TYPES and self.order == "rank"
        key = collective, size_class, order_free, wide, root
        selected = self._selected.get(key)
        if selected is None:
            selected = self._selected[key] = self._choose(
                collective, size_class, order_free, wide, root
            )
        return selected

    def named(self, collective: Collective, name: str, root: int | None = None) -> Selected:
        """The plan called `name`."""
        plan = self._plan(collective, name, root)
        program = self._compile(collective, name, root)
        return Selected(name, "asked for by name", program, plan.rank_ordered)

    def _choose(
        self,
        collective: Collective,
        nbytes: int,
        order_free: bool,
        wide: bool,
        root: int | None,
    ) -> Selected:
        if collective not in _CHOSEN or self.ranks == 1:
            name = _OTHERS.get(collective) or names(collective)[0]
            return self.named(collective, name, root)
        if collective is Collective.ALL_REDUCE and self._options.plan != "auto":
            return self.named(collective, self._options.plan, root)
        choice = choose(
            collective,
            self.ranks,
            nbytes,
            "rank" if self.order == "rank" else "any",
            self.parameters,
            root=root,
            order_free=order_free,
            accumulate_ratio=2 if wide else 1,
        )
        selected = self.named(collective, choice.name, root)
        _log.debug("%s of %d bytes: %s", collective.label, nbytes, choice.reason)
        return Selected(choice.name, choice.reason, selected.program, selected.rank_ordered)

    def _plan(self, collective: Collective, name: str, root: int | None) -> CollectivePlan:
        key = collective, name, root
        if key not in self._plans:
            self._plans[key] = generate(collective, name, self.ranks, root)
        return self._plans[key]

    def _compile(self, collective: Collective, name: str, root: int | None) -> _native.Program:
        key = collective, name, root
        if key not in self._compiled:
            plan = self._plan(collective, name, root)
            self._compiled[key] = _native.program(
                collective,
                names(collective).index(name) + 1,
                self.ranks,
                self.rank,
                plan.chunks,
                collective in _SPLITS,
                [(int(i.kind), max(i.peer, 0), i.chunk, i.last) for i in plan.programs[self.rank]],
            )
        return self._compiled[key]
