"""The choice of a plan (collective algorithm) for each operation, and the links that plans need.

A group of at most 4 ranks is opened with all its links. A larger group is opened with a ring of
links, and makes every other link when an operation needs it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import slackline._native as _native
from slackline._lazy import record
from slackline.errors import UsageError
from slackline.nic._options import NicOptions
from slackline.nic.collectives._programs import BY_HOST, compile_program, ranks_per_host, starts
from slackline.plan.collective import (
    PLANS,
    Collective,
    CollectivePlan,
    generate,
    names,
    part,
)
from slackline.units import show_bytes
from slackline.wire import DType, ReduceOp

if TYPE_CHECKING:
    from slackline.nic._records import Decide
    from slackline.nic.collectives._trees import TreePlan, TreePlans
    from slackline.plan.collective import CostParameters, Runs, Timing

__all__ = [
    "CHAIN",
    "DIRECT",
    "EARLY",
    "MESH",
    "RING",
    "STAR",
    "KnownTimes",
    "PlanBook",
    "Selected",
    "connects_later",
    "first_peers",
]


_ALL_LINKED = 4
"""The largest group that is opened with all its links."""
CHAIN = "reduce-broadcast"
"""The all_reduce in which partial sums go along a chain of ranks, and the result goes back."""
EARLY = MappingProxyType(
    {
        Collective.ALL_REDUCE: (CHAIN, "ring"),
        Collective.ALL_GATHER: ("ring",),
        Collective.BROADCAST: ("chain",),
        Collective.BARRIER: ("chain",),
    }
)
"""The plans in which a rank exchanges messages only with the next and the previous rank. Plans for
reduce and reduce_scatter are missing: a reduce by a chain also needs a link to the root, and a
reduce_scatter by a ring adds in another order."""


def connects_later(ranks: int) -> bool:
    """Return whether a group of `ranks` makes most links when an operation needs them."""
    return ranks > _ALL_LINKED


def first_peers(rank: int, ranks: int) -> frozenset[int]:
    """Return the ranks to which a new group of `ranks` connects `rank`.

    In a large group these are the next and the previous rank.
    """
    if not connects_later(ranks):
        return frozenset(range(ranks)) - {rank}
    return frozenset(((rank + 1) % ranks, (rank - 1) % ranks))


_log = logging.getLogger("slackline.nic")

_HALF_TYPES = (DType.FLOAT16, DType.BFLOAT16)
_FIXED = {
    Collective.REDUCE_SCATTER: "mesh",
    Collective.ALL_GATHER: "mesh",
    Collective.GATHER: "direct",
    Collective.SCATTER: "direct",
    Collective.ALL_TO_ALL: "direct",
}
"""Collectives with a fixed plan: one message from each rank to each rank that needs it."""
_DIRECT_BARRIER = 8
"""The largest group whose barrier is "direct", where every rank sends to every other. The cost
model finds no faster plan at this size, and the barrier names a missing rank at once."""
_MODELLED = 64
"""The largest group for which the cost model helps to choose an all_reduce among timed plans.
Larger groups choose by measured times alone."""
_SMALLEST_CLASS = 1 << 10
DIRECT, MESH = "direct", "mesh"
"""The plans in which every rank sends to every other."""
STAR = "star"
"""The plan in which an aggregator (a node that adds for all ranks) reduces."""
_ADD_ONCE = (DIRECT, MESH)
"""The plans in which one rank has the values of all ranks and adds them at once, in rank order. In
every group they sum half types in fp32 and round once."""
RING, ROTATING_RING = "reduce-broadcast", "ring"
"""The plans that ring NICs can execute: the default plan, and a plan that users can ask for."""
_OFFLOADED = {
    ReduceOp.SUM: (DType.FLOAT32, DType.INT32, DType.BFLOAT16, DType.FLOAT16),
    ReduceOp.AVG: (DType.FLOAT32,),
}
"""The operations and types that devices add. AVG is limited to fp32: in other types the average is
not the rounded sum divided by the ranks. Half types need rank order, where the engine keeps sums in
fp32 until the end, as devices do."""


_Shape = tuple[Collective, int, bool, int | None, bool, bool]
"""What decides on the plan of an operation: the collective, its size class, whether partial sums
are wider than the elements, the root, whether the plan needs the first links alone, and whether an
all_reduce adds in rank order though the group does not."""


@record(frozen=True, slots=True)
class Selected:
    """The chosen plan of an operation, compiled for this rank, with the reason for the choice."""

    name: str
    reason: str
    program: _native.Program


class PlanBook:
    """The plan book of one group, which chooses, compiles and caches the group's plans."""

    def __init__(
        self,
        rank: int,
        ranks: int,
        options: NicOptions,
        *,
        all_shared: bool,
        hosts: Sequence[object],
        device_bytes: int = 0,
        ranks_per_processor: float = 1,
        decide: Decide | None = None,
    ) -> None:
        """Set the group's order of additions; plans are chosen and compiled later.

        `all_shared` says that all links are shared memory; `hosts` has the host of each rank.
        `device_bytes` is the longest payload that the ranks' devices take; 0 without devices.
        `ranks_per_processor` is the number of ranks that share a processor, at least 1.
        `decide` receives each choice of a plan. Raises UsageError if the configured plan needs
        ranks that are numbered host by host, with as many on each host, and the ranks are not.
        """
        self._ranks_per_host = ranks_per_host(hosts)
        self._ranks_per_processor = ranks_per_processor
        if options.plan in BY_HOST and self._ranks_per_host is None:
            raise UsageError(
                f"the plan {options.plan!r} needs ranks that are numbered host by host, and as "
                "many on each host"
            )
        self.rank, self.ranks = rank, ranks
        self.decide = decide
        """The function that receives decisions: the subject, the choice and the reason; or None."""
        self.order = options.order
        if options.order == "auto":
            cheap = all_shared or self._ranks_per_host == 1
            self.order = "rank" if cheap and options.keeps_rank_order() else "any"
        self.device_plan = ROTATING_RING if options.plan == ROTATING_RING else RING
        """The plan that ring NICs of the ranks execute."""
        if device_bytes and self.device_plan == RING:
            self.order = "rank"
        longest = min(device_bytes, options.wire_segment_bytes, options.memory_segment_bytes)
        # With a power of two, a frame of any type consists of whole lines of 64 bytes.
        self._device_bytes = 1 << longest.bit_length() - 1 if longest else 0
        self._offloaded: Selected | None = None
        self.connects_later = connects_later(ranks)
        """Whether most links of the group are made only when an operation needs them."""
        self._wants_star, self._star_limit = options.plan == STAR, 0
        self._asked = "auto" if self._wants_star else options.plan
        self._shares, self._wires = options.shares, "shm" not in options.rails
        self._aggregated = bool(options.aggregator)
        self.all_shared = all_shared
        no_ring = all_shared or self.order == "rank"
        self._preferred: Literal["mesh", "ring"] = "mesh" if no_ring else "ring"
        self._timings: tuple[Timing, ...] = ()
        self._parameters: CostParameters | None = None
        self._modelled = False
        """Whether the cost model gives the times of most plans."""
        self._plans: dict[tuple[Collective, str, int | None], CollectivePlan] = {}
        self._programs: dict[tuple[Collective, str, int | None], _native.Program] = {}
        self._selected: dict[_Shape, Selected] = {}
        self._trees: TreePlans | None = None
        self.star_adds_trees: bool | None = None
        """Whether the aggregator adds in the order of a tree; None without an aggregator."""

    def reach_star(self, most_bytes: int, *, adds_trees: bool) -> None:
        """Allow the aggregator for operations of up to `most_bytes` from now on."""
        self._star_limit, self.star_adds_trees = most_bytes, adds_trees
        self._forget()

    def _forget(self) -> None:
        """Choose every plan anew from now on."""
        self._selected.clear()
        self._trees = None

    @property
    def device_bytes(self) -> int:
        """The longest payload of a frame that devices take; 0 without devices."""
        return self._device_bytes

    @property
    def port_rate(self) -> float:
        """The least rate in bytes per second that ports reach in a mesh; equal on all ranks.

        The time of the mesh counts as a whole, latency included: on a busy machine the latency is
        measured too uncertainly to be subtracted.
        """
        from slackline.nic.collectives._calibration import LARGE_BYTES, mesh_terms

        mesh = next(timing for timing in self._timings if timing.name == "mesh")
        terms = mesh_terms(LARGE_BYTES, self.ranks, shared_memory=False)
        return terms.port_bytes * 1e9 / mesh.large_ns

    @property
    def shares_ports(self) -> bool:
        """Whether ranks get shares by their ports' rates.

        Between three ranks or more, a rank's share decides how much its port carries in a mesh. A
        group that is too large for the cost model keeps equal shares.
        """
        apart = self._ranks_per_host == 1 or (self._shares == "measured" and self._wires)
        plain = self._asked in ("auto", "mesh") and not (self._aggregated or self._device_bytes)
        return self._shares != "equal" and apart and plain and 3 <= self.ranks <= _MODELLED

    def candidates(self) -> tuple[str, ...]:
        """Return the names of the all_reduce plans that keep this group's order of additions."""
        every = names(Collective.ALL_REDUCE, helpers=int(self._star_limit > 0))
        if self.order == "any":
            return every
        rows = {name: PLANS[Collective.ALL_REDUCE, name] for name in every}
        return tuple(n for n, row in rows.items() if row.rank_ordered or self.ranks == 1)

    @property
    def costs(self) -> tuple[int, float]:
        """The latency in ns and the rate of a port in bytes per second; there must be times."""
        assert self._parameters is not None
        return self._parameters.latency_ns, self._parameters.bytes_per_second

    def learn(self, measured: Sequence[int]) -> None:
        """Choose plans by `measured` times from now on, which must be equal on all ranks."""
        # Here, as in `calibrate`, and not above: a rank alone has nothing to measure.
        from slackline.nic.collectives._calibration import parameters_from, timings_from

        self._timings = timings_from(self.candidates(), measured)
        self._parameters = parameters_from(self._timings, self.ranks, shared_memory=self.all_shared)
        self._forget()

    def learn_timed(self, measured: Sequence[int]) -> None:
        """Choose plans by the times of the plans of `timed`, which must be equal on all ranks."""
        (self.learn_few if self.connects_later else self.learn)(measured)

    def timed(self) -> tuple[str, ...]:
        """Return the all_reduce plans to time when the group opens.

        These are all candidates, or the candidates that need few links if most links come later.
        """
        every = self.candidates()
        return tuple(n for n in every if n in (CHAIN, STAR)) if self.connects_later else every

    def learn_few(self, measured: Sequence[int]) -> None:
        """Choose plans by the cost model from now on, fitted to the measured time of CHAIN.

        `measured` has the times of the plans of `timed`, which must be equal on all ranks. For the
        other plans the choice uses the times that the model expects.
        """
        from slackline.nic.collectives._calibration import (
            chain_parameters,
            expected_timings,
            timings_from,
        )

        tried = {timing.name: timing for timing in timings_from(self.timed(), measured)}
        self._parameters = chain_parameters(
            tried[CHAIN],
            self.ranks,
            shared_memory=self.all_shared,
            ranks_per_processor=self._ranks_per_processor,
        )
        expected = expected_timings(self.candidates(), self.ranks, self._parameters)
        self._timings = tuple(tried.get(each.name, each) for each in expected)
        self._modelled = True
        self._forget()

    def expect(self, latency_ns: int, bytes_per_second: float) -> None:
        """Choose plans by the cost model from now on; the arguments must be equal on all ranks.

        They are as in `costs`, of another group over the same network.
        """
        from slackline.nic.collectives._calibration import expected_timings, parameters_of

        self._parameters = parameters_of(
            latency_ns,
            bytes_per_second,
            shared_memory=self.all_shared,
            ranks_per_processor=self._ranks_per_processor,
        )
        self._timings = expected_timings(self.candidates(), self.ranks, self._parameters)
        self._modelled = True
        self._forget()

    def all_reduce(
        self,
        nbytes: int,
        dtype: DType,
        op: ReduceOp,
        *,
        early: bool = False,
        rank_order: bool = False,
    ) -> Selected:
        """Return the plan of an all_reduce over `nbytes`, on devices if they can add this type.

        With `early` the plan needs only the links that a large group is opened with. With
        `rank_order` the plan adds in rank order also in a group that adds in any order.
        """
        ordered = rank_order and self.order != "rank"
        if not self._device_bytes or ordered or self.not_offloaded(nbytes, dtype, op):
            return self.select(Collective.ALL_REDUCE, nbytes, dtype, early=early, ordered=ordered)
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
        self,
        collective: Collective,
        nbytes: int,
        dtype: DType,
        root: int | None = None,
        *,
        early: bool = False,
        ordered: bool = False,
    ) -> Selected:
        """Return the plan of an operation over `nbytes`, rounded up to a power of two.

        With `early` the plan needs only the links that a large group is opened with, if there is
        such a plan. With `ordered` an all_reduce adds in rank order, though the group does not.
        """
        size_class = max(_SMALLEST_CLASS, 1 << (nbytes - 1).bit_length()) if nbytes > 0 else 0
        wide = dtype in _HALF_TYPES and self.order == "rank"
        key = collective, size_class, wide, root, early, ordered
        return self._selected.get(key) or self._select(key)

    def _select(self, key: _Shape) -> Selected:
        collective, size_class, wide, root, early, ordered = key
        if ordered:
            name, reason = self._choose_ordered(size_class)
        else:
            name, reason = self._choose(collective, size_class, wide, root, early=early)
        return self._use(key, Selected(name, reason, self.program(collective, name, root)))

    def _use(self, key: _Shape, selected: Selected) -> Selected:
        collective, size_class = key[:2]
        self._selected[key] = selected
        _log.debug("%s of %d bytes: %s", collective.label, size_class, selected.reason)
        if self.decide is not None:
            made = f"{selected.name} for {collective.label} of at most {show_bytes(size_class)}"
            self.decide("plan", made, selected.reason)
        return selected

    def follow(self, earlier: PlanBook) -> None:
        """Choose the plans for all shapes of operations that an earlier group has run.

        So the first operations of this group do not wait for a choice. Operations with a root are
        left out, since ranks may have other numbers now. The choices and the compiled plans of a
        group for which all was the same are taken over.
        """
        same = earlier._grounds() == self._grounds()
        if same:
            self._plans.update(earlier._plans)
            self._programs.update(earlier._programs)
        for key, selected in list(earlier._selected.items()):
            if key[3] is None and key not in self._selected:
                if same:
                    self._use(key, selected)
                else:
                    self._select(key)

    def _grounds(self) -> tuple[object, ...]:
        """Return all that the choice and the compilation of a plan rest on.

        Options are left out: all groups of an engine have the same.
        """
        return (
            self.rank,
            self.ranks,
            self.order,
            self.all_shared,
            self._ranks_per_host,
            self._ranks_per_processor,
            self._device_bytes,
            self._star_limit,
            self._timings,
            self._parameters,
            self._modelled,
        )

    def program(
        self, collective: Collective, name: str, root: int | None = None
    ) -> _native.Program:
        """Return this rank's part of the plan called `name`, compiled for the engine."""
        key = collective, name, root
        if key not in self._programs:
            per_host = self._ranks_per_host if name in BY_HOST else None
            mine = part(collective, name, self.ranks, self.rank, root, ranks_per_host=per_host)
            self._programs[key] = compile_program(mine)
        return self._programs[key]

    def tree(self, runs: Runs, nbytes: int, dtype: DType, op: ReduceOp) -> TreePlan:
        """Return the plan of an all_reduce of nodes in a tree.

        Only the latest runs are kept: they change with the members alone.
        """
        trees = self._trees
        if trees is None or trees.runs != runs:
            from slackline.nic.collectives._trees import TreePlans  # Most groups have no tree.

            self._trees = trees = TreePlans(self, runs)
        return trees.select(nbytes, dtype, op)

    def weigh_star(self, nbytes: int) -> tuple[bool, str]:
        """Return whether an aggregator adds nodes of `nbytes` sooner than the ranks do, and why.

        The plan of nodes takes as long as a mesh.
        """
        if nbytes > self._star_limit:
            return False, f"the aggregator takes at most {show_bytes(self._star_limit)}"
        if self._wants_star:
            return True, "asked for by name"
        if self._asked != "auto":
            return False, f"{self._asked} is asked for by name"
        if self._parameters is None:
            return False, "nothing has been measured yet"
        timings = [timing for timing in self._timings if timing.name in (MESH, STAR)]
        name, reason = self._fastest(timings, nbytes, self._parameters, preferred="mesh")
        return name == STAR, reason

    def not_offloaded(self, nbytes: int, dtype: DType, op: ReduceOp) -> str:
        """Return why the ranks' devices do not add such an operation; empty if they do."""
        rounds_often = dtype in _HALF_TYPES and self.order != "rank"
        if nbytes and dtype in _OFFLOADED.get(op, ()) and not rounds_often:
            return ""
        return f"the devices do not add {op.name.lower()} of {dtype.name.lower()}"

    def _choose(
        self, collective: Collective, nbytes: int, wide: bool, root: int | None, *, early: bool
    ) -> tuple[str, str]:
        """Return the plan of an operation, by options, group size and measured cost, and why."""
        if early and collective in EARLY and collective is not Collective.ALL_REDUCE:
            return EARLY[collective][0], "over the first links"
        if collective in _FIXED:
            return _FIXED[collective], "the only one"
        if collective is Collective.BARRIER:
            few = self.ranks <= _DIRECT_BARRIER
            name = "direct" if few else "dissemination"
            return name, f"{self.ranks} ranks; direct is for at most {_DIRECT_BARRIER}"
        if collective is Collective.ALL_REDUCE and self._asked != "auto":
            return self._asked, "asked for by name"
        if collective is Collective.ALL_REDUCE and self._wants_star and nbytes <= self._star_limit:
            return STAR, "asked for by name"
        if self._parameters is None:
            return names(collective)[0], "nothing has been measured yet"
        if collective is Collective.ALL_REDUCE:
            # In rank order this plan sends partial sums of half types in fp32, twice the bytes.
            left_out = {"reduce-broadcast"} if wide else set()
            if nbytes > self._star_limit:
                left_out.add(STAR)
            timings = [t for t in self._timings if t.name not in left_out]
            if early:
                timings = [t for t in self._timings if t.name in EARLY[collective]]
            return self._fastest(timings, nbytes, self._parameters, preferred=self._preferred)
        from slackline.plan.collective import choose  # Imported by `learn`.

        return choose(
            collective,
            self.ranks,
            nbytes,
            "rank" if self.order == "rank" else "any",
            self._parameters,
            root=root,
            accumulate_ratio=2 if wide else 1,
        )

    def _choose_ordered(self, nbytes: int) -> tuple[str, str]:
        """Return the plan of an all_reduce in rank order, in a group of another order, and why."""
        if self._asked in _ADD_ONCE:
            return self._asked, "asked for by name"
        if self._parameters is None:
            return DIRECT, "nothing has been measured yet"
        timings = [timing for timing in self._timings if timing.name in _ADD_ONCE]
        name, reason = self._fastest(timings, nbytes, self._parameters, preferred="mesh")
        return name, f"{reason}; rank order is asked for"

    def _fastest(
        self,
        timings: Sequence[Timing],
        nbytes: int,
        parameters: CostParameters,
        *,
        preferred: Literal["mesh", "ring"],
    ) -> tuple[str, str]:
        """Return the fastest of these all_reduce plans, and why; see `fastest`."""
        from slackline.plan.collective import expected_ns, fastest  # Imported by `learn`.

        expected = None
        if self._modelled or self.ranks <= _MODELLED:
            expected = {
                timing.name: expected_ns(timing.name, self.ranks, nbytes, parameters)
                for timing in timings
            }
        how = "as the cost model expects" if self._modelled else "as tried"
        return fastest(timings, nbytes, expected, preferred=preferred, how=how)

    def _plan(self, collective: Collective, name: str, root: int | None) -> CollectivePlan:
        key = collective, name, root
        if key not in self._plans:
            self._plans[key] = generate(collective, name, self.ranks, root)
        return self._plans[key]


Agree = Callable[[Sequence[int]], Sequence[int]]
"""A function that returns the maximum over all ranks of each value."""


class KnownTimes:
    """The times that groups of one engine have measured. Threads may open several at once.

    Over a slow network timing the plans takes longer than all other work of a change of members. So
    a group whose members change takes the times of an earlier group of its size. Where there was
    none, it takes the times that the cost model expects, with the latency and the rate of the group
    that was measured last.
    """

    def __init__(self) -> None:
        self._times: dict[tuple[int, bool, tuple[str, ...]], tuple[int, ...]] = {}
        """The times by the number of ranks, whether they share memory, and the timed plans."""
        self._books: dict[tuple[int, bool, tuple[str, ...]], PlanBook] = {}
        """The last book of each key of `_times`; it may have expected times."""
        self._last: PlanBook | None = None
        """The book of the group that has learned times last."""
        self._costs: dict[bool, tuple[int, int]] = {}
        """The latency in ns and the ns per GB of a port, by whether the ranks share memory."""

    def note(self, book: PlanBook, measured: Sequence[int]) -> None:
        """Store the times that the group of `book` has measured and learned."""
        self._times[_key(book)] = tuple(measured)
        latency_ns, bytes_per_second = book.costs
        self._costs[book.all_shared] = latency_ns, max(1, round(1e18 / bytes_per_second))
        self._books[_key(book)] = self._last = book

    def teach(self, book: PlanBook, agree: Agree) -> bool:
        """Have `book` choose by known times; return False if no rank knows any.

        Every rank must call this. A rank that has come new learns the times from the others, and
        where several ranks know times, the longest count, so that all ranks choose equally. The
        book then chooses the plans for the shapes of operations that the last group has run.
        """
        count = 2 * len(book.timed())
        mine = self._times.get(_key(book), (0,) * count)
        agreed = tuple(agree([*mine, *self._costs.get(book.all_shared, (0, 0))]))
        times, (latency_ns, ns_per_gb) = agreed[:count], agreed[count:]
        earlier = self._books.get(_key(book)), self._last
        if all(times):
            book.learn_timed(times)
            self.note(book, times)
        elif latency_ns:
            book.expect(latency_ns, 1e18 / ns_per_gb)
            self._costs[book.all_shared] = latency_ns, ns_per_gb
            self._books[_key(book)] = self._last = book
        else:
            return False
        for each in earlier:
            if each is not None:
                book.follow(each)
        return True


def _key(book: PlanBook) -> tuple[int, bool, tuple[str, ...]]:
    return book.ranks, book.all_shared, book.timed()
