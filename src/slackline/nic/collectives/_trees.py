"""The choice of the plan that adds the nodes of a tree.

    tree    the engine's plan: any number of nodes of each rank
    star    an aggregator adds, if each rank has one node and these are the leaves of a tree
    ring    the circuits of two ranks add: one addition is the same in every order

Aggregators and circuits add the data of one buffer of each rank. The engine of an aggregator can
add in the tree's order. A circuit adds in the order of its ports, or of its ring.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

import slackline._native as _native
from slackline._lazy import record
from slackline.nic.collectives._programs import compile_program, starts
from slackline.plan.collective import Collective, even_runs, generate, part, tree_part
from slackline.units import show_bytes
from slackline.wire import DType, ReduceOp

if TYPE_CHECKING:
    from slackline.nic._records import Decide
    from slackline.plan.collective import Runs

__all__ = ["TreePlan", "TreePlans", "aggregator_tree"]

_log = logging.getLogger("slackline.nic")

TREE, STAR, MESH = "tree", "star", "mesh"


@record(frozen=True, slots=True)
class TreePlan:
    """The chosen plan of an all_reduce of nodes, compiled for this rank, with the reason."""

    name: str
    reason: str
    program: _native.Program
    one_buffer: bool
    """Whether the rank's one node and the result are posted as one buffer, and not in parts."""


def aggregator_tree(workers: int, *, offloads: bool) -> _native.Program:
    """Return an aggregator's part of the sums of one node of each of its workers."""
    mine = part(Collective.ALL_REDUCE, STAR, workers, workers)
    return compile_program(mine, offloads=offloads, pairwise=even_runs(workers, workers))


class Book(Protocol):
    """The parts of a group's plan book on which the choice depends."""

    rank: int
    ranks: int
    decide: Decide | None
    device_plan: str
    star_adds_trees: bool | None

    @property
    def device_bytes(self) -> int:
        """The longest payload of a frame that devices take; 0 without devices."""

    def weigh_star(self, nbytes: int) -> tuple[bool, str]:
        """Return whether an aggregator adds nodes of `nbytes` sooner than the ranks, and why."""

    def not_offloaded(self, nbytes: int, dtype: DType, op: ReduceOp) -> str:
        """Return why the ranks' devices do not add such an operation; empty if they do."""


class TreePlans:
    """The plans of one group for the nodes of `runs`."""

    def __init__(self, book: Book, runs: Runs) -> None:
        self._book, self.runs = book, runs
        self._programs: dict[str, _native.Program] = {}
        self._selected: dict[tuple[int, DType, ReduceOp], TreePlan] = {}
        self._told: set[str] = set()

    def select(self, nbytes: int, dtype: DType, op: ReduceOp) -> TreePlan:
        """Return the plan of an operation over `nbytes`, which are equal on all ranks."""
        size_class = 1 << (nbytes - 1).bit_length() if nbytes > 0 else 0
        shape = size_class, dtype, op
        known = self._selected.get(shape)
        if known is None:
            name, reason = self._choose(size_class, dtype, op)
            known = TreePlan(name, reason, self._program(name), name != TREE)
            self._selected[shape] = known
            _log.debug("all_reduce of nodes of %d bytes: %s: %s", size_class, name, reason)
            if self._book.decide is not None:
                made = f"{name} for all_reduce of nodes of at most {show_bytes(size_class)}"
                self._book.decide("plan", made, reason)
        return known

    def _choose(self, nbytes: int, dtype: DType, op: ReduceOp) -> tuple[str, str]:
        book = self._book
        if book.device_bytes:
            why = self._unfit("the circuits add", most=2) or book.not_offloaded(nbytes, dtype, op)
            if not why:
                return (
                    book.device_plan,
                    "ranks have devices that add; one addition has no order",
                )
            return TREE, self._tell(why)
        if book.star_adds_trees is not None:
            alone = "" if book.star_adds_trees else "the circuit of the aggregator adds"
            why = self._unfit(alone or "the aggregator adds", most=2 if alone else None)
            if why:
                return TREE, self._tell(why)
            takes, reason = book.weigh_star(nbytes)
            return STAR if takes else TREE, reason
        return TREE, "the only one for nodes of a tree"

    def _unfit(self, who_adds: str, *, most: int | None) -> str:
        """Return why this group's nodes cannot be added elsewhere, or an empty text.

        `most` is the largest number of ranks for which a sum in rank order is that of the tree.
        """
        runs, ranks = self.runs, self._book.ranks
        for rank, nodes in enumerate(runs.nodes):
            if len(nodes) > 1:
                return f"{who_adds} one node of each rank, and rank {rank} has {len(nodes)}"
        if most is not None and ranks > most:
            return f"{who_adds} in rank order, which for {ranks} ranks is not the order of a tree"
        if runs.sums != even_runs(ranks, ranks).sums:
            return f"{who_adds} nodes of one size, and those of the ranks have several"
        return ""

    def _tell(self, why: str) -> str:
        """Log once that a part of the hardware which the user has given stays idle; return why."""
        if why not in self._told:
            self._told.add(why)
            leaves = self.runs.tree.leaves
            _log.warning("the engine's plan adds the nodes of a tree of %d leaves: %s", leaves, why)
        return why

    def _program(self, name: str) -> _native.Program:
        if name not in self._programs:
            self._programs[name] = self._compile(name)
        return self._programs[name]

    def _compile(self, name: str) -> _native.Program:
        book, runs, kind = self._book, self.runs, Collective.ALL_REDUCE
        if name == TREE:
            return compile_program(tree_part(runs, book.rank))
        mine = part(kind, name, book.ranks, book.rank)
        if name == STAR:
            repeated = compile_program(part(kind, MESH, book.ranks, book.rank), pairwise=runs)
            return compile_program(mine, pairwise=runs, repeated_by=repeated)
        return compile_program(
            mine,
            longest=book.device_bytes,
            offloads=True,
            opens=starts(generate(kind, name, book.ranks)),
            pairwise=runs,
        )
