"""The validation of a plan: a run on symbols shows whether the plan computes its collective.

A symbol says which ranks' contributions a value holds and in what order they were combined. One run
shows that every contribution is reduced exactly once, that final values are on the ranks that must
have them, that `last`, BUFFER and REDUCE_ALL are right, and that no instruction waits for ever.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from slackline.errors import UsageError
from slackline.plan.collective._grid import grid
from slackline.plan.collective._plan import Collective, CollectivePlan, Instruction, Kind
from slackline.plan.collective._trace import Cell, Event, Trace, trace

__all__ = ["Fault", "Verdict", "check", "validate"]


_REDUCING = (Kind.ADD, Kind.BUFFER, Kind.REDUCE_ALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An error in a plan, with the instruction at which it shows."""

    rank: int
    index: int | None
    """The instruction's index in the rank's program; None where the fault shows only at the end."""
    token: str | None
    """The instruction's text, or None."""
    reason: str

    def __str__(self) -> str:
        where = "at the end" if self.index is None else f"instruction {self.index} ({self.token})"
        return f"rank {self.rank}, {where}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of `check`."""

    fault: Fault | None
    """The first fault, or None for a valid plan."""
    rank_ordered: bool
    """Whether each final value was reduced as ((x0 op x1) op x2) ...; False with a fault."""


def validate(plan: CollectivePlan) -> CollectivePlan:
    """Check the plan and return it; raise UsageError with the first fault and a grid."""
    fault = check(plan).fault
    if fault is None:
        return plan
    mark = None if fault.index is None else (fault.rank, fault.index)
    raise UsageError(f"{plan}: {fault}\n{grid(plan, mark)}", rank=fault.rank)


def check(plan: CollectivePlan) -> Verdict:
    """Run the plan on symbols and return the first fault, if any.

    The run takes time in proportion to instructions times ranks.
    """
    run = _Run(plan)
    try:
        run.check_ranges()
        result = trace(plan)
        for event in result.events:
            run.step(event)
        run.check_left_over(result)
        run.check_due()
    except _Found as found:
        return Verdict(fault=found.fault, rank_ordered=False)
    return Verdict(fault=None, rank_ordered=run.rank_ordered)


@dataclass(frozen=True, slots=True)
class _Value:
    """A rank's current value of a chunk: its contributions, in the order they were combined."""

    of: tuple[int, ...]
    final: bool
    chained: bool = True
    """Whether contributions were added one at a time, each as the right operand."""

    def __str__(self) -> str:
        kind = "the final value" if self.final else "a partial"
        return f"{kind} of {_ranks(self.of)}"


class _Found(Exception):
    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class _Run:
    """The symbolic values of one run of a plan; every method raises _Found at the first fault."""

    def __init__(self, plan: CollectivePlan) -> None:
        self.plan = plan
        self.rank_ordered = True
        self._mine: dict[tuple[int, int], _Value] = {}
        self._buffered: dict[tuple[int, int], dict[int, Cell]] = {}
        self._sent: dict[Cell, _Value] = {}
        self._contributions = [plan.contributions(rank) for rank in range(plan.ranks)]
        self._everything = tuple(sorted(sum(self._contributions, ())))
        moved = not plan.collective.reduces
        for rank in range(plan.ranks):
            if plan.runs is not None:
                for node in self._contributions[rank]:
                    for part in range(plan.ranks):
                        self._mine[rank, part + plan.ranks * node] = _Value((node,), final=False)
                continue
            for chunk in range(plan.chunks):
                if plan.collective.has(rank, chunk, plan.ranks, plan.root):
                    self._mine[rank, chunk] = _Value((rank,), final=moved or plan.ranks == 1)

    def check_ranges(self) -> None:
        for rank, index, instruction in self.plan.cells():
            peer, chunk = instruction.peer, instruction.chunk
            if instruction.kind is not Kind.REDUCE_ALL and (
                peer == rank or peer >= self.plan.members
            ):
                others = f"another rank below {self.plan.members}"
                raise self._found((rank, index), f"the peer must be {others}, not {peer}")
            if chunk >= self.plan.chunks:
                raise self._found((rank, index), f"the plan has chunks 0 to {self.plan.chunks - 1}")
            if instruction.kind in _REDUCING and not self.plan.collective.reduces:
                label = self.plan.collective.label
                raise self._found((rank, index), f"{label} reduces nothing")

    def step(self, event: Event) -> None:
        rank, chunk = event.cell[0], event.instruction.chunk
        mine = self._mine.get((rank, chunk))
        if event.instruction.kind is Kind.SEND:
            if mine is None:
                raise self._found(event.cell, f"the rank has nothing of chunk {chunk} yet")
            self._sent[event.cell] = mine
        elif event.instruction.kind is Kind.COPY:
            self._mine[rank, chunk] = self._copy(event, mine)
        else:
            lacks = mine is None and self.plan.runs is None and rank < self.plan.ranks
            assert not lacks, "every rank has its contribution"
            match event.instruction.kind:
                case Kind.ADD:
                    self._mine[rank, chunk] = self._add(event, mine)
                case Kind.BUFFER:
                    self._buffer(event)
                case _:
                    self._mine[rank, chunk] = self._reduce_all(event, mine)

    def check_left_over(self, result: Trace) -> None:
        """Check that no receive waits for ever, and that every message and every BUFFER is used."""
        never_run = {*result.blocked, *result.behind}
        unsent = {
            (rank, instruction.peer, instruction.chunk)
            for rank, index, instruction in self.plan.cells()
            if instruction.kind is Kind.SEND and (rank, index) in never_run
        }
        for cell in result.blocked:
            waits = self._at(cell)
            if (waits.peer, cell[0], waits.chunk) not in unsent:
                reason = f"waits for a message about chunk {waits.chunk} that rank {waits.peer}"
                raise self._found(cell, f"{reason} never sends")
        if result.blocked:
            raise self._found(*self._cycle(result.blocked))
        for cell in result.unreceived:
            raise self._found(cell, f"rank {self._at(cell).peer} never receives this message")
        for (rank, chunk), buffered in self._buffered.items():
            for cell in buffered.values():
                raise self._found(
                    cell, f"rank {rank} buffers this for chunk {chunk} and never reduces it"
                )

    def check_due(self) -> None:
        plan = self.plan
        for rank in range(plan.ranks):
            for chunk in range(plan.chunks):
                mine = self._mine.get((rank, chunk))
                if plan.runs is not None and chunk >= plan.ranks:
                    continue  # Only the parts of the sum are results.
                if not plan.collective.due(rank, chunk, plan.ranks, plan.root):
                    continue
                if mine is None or not mine.final:
                    has = "nothing" if mine is None else mine
                    reason = f"chunk {chunk} is due here and the rank has {has}"
                    raise _Found(Fault(rank=rank, index=None, token=None, reason=reason))
                if plan.collective.reduces and plan.collective is not Collective.BARRIER:
                    ordered = mine.chained and mine.of == tuple(range(plan.ranks))
                    self.rank_ordered = self.rank_ordered and ordered
                    if plan.rank_ordered and not ordered:
                        reason = (
                            f"the plan claims rank order, but chunk {chunk} is reduced in order "
                        )
                        order = ", ".join(map(str, mine.of)) + (
                            "" if mine.chained else " by groups"
                        )
                        fault = Fault(rank=rank, index=None, token=None, reason=reason + order)
                        raise _Found(fault)

    def _copy(self, event: Event, mine: _Value | None) -> _Value:
        value = self._received(event)
        if mine is not None and mine.final:
            raise self._found(event.cell, f"the rank already has {mine}")
        if not value.final:
            raise self._found(event.cell, f"copies {value}, which is not final")
        return value

    def _add(self, event: Event, mine: _Value | None) -> _Value:
        if mine is None:
            raise self._found(event.cell, "a helper has no data to add to")
        value = self._received(event)
        for side in (value, mine):
            if side.final:
                raise self._found(event.cell, f"adds {value} to {mine}")
        of = value.of + mine.of
        if self.plan.collective is Collective.BARRIER:
            of = tuple(sorted({*of}))  # A barrier may learn of the same rank twice.
        elif twice := set(value.of) & set(mine.of):
            raise self._found(event.cell, f"reduces the contribution of {_ranks(twice)} twice")
        complete = len(of) == self.plan.ranks
        if complete and not event.instruction.last:
            raise self._found(event.cell, "completes the chunk and is not marked last")
        if event.instruction.last and not complete:
            missing = _ranks(set(range(self.plan.ranks)) - set(of))
            raise self._found(
                event.cell, f"is marked last and the contribution of {missing} is missing"
            )
        return _Value(of, final=complete, chained=value.chained and len(mine.of) == 1)

    def _buffer(self, event: Event) -> None:
        value, peer = self._received(event), event.instruction.peer
        chunk = self.plan.strand(event.instruction)
        mine = self._mine.get((event.cell[0], chunk))
        if value.final or len(value.of) != 1 or value.of[0] not in self._contributions[peer]:
            raise self._found(event.cell, f"buffers {value}, which is not rank {peer}'s own")
        buffered = self._buffered.setdefault((event.cell[0], chunk), {})
        if value.of[0] in buffered:
            raise self._found(event.cell, f"rank {peer}'s contribution is already buffered")
        if mine is not None and mine.final:
            raise self._found(event.cell, f"the rank already has {mine}")
        buffered[value.of[0]] = event.cell

    def _reduce_all(self, event: Event, mine: _Value | None) -> _Value:
        rank = event.cell[0]
        own = self._contributions[rank] if rank < self.plan.ranks else ()
        if mine is not None and (mine.final or mine.of[0] not in own or len(mine.of) > 1):
            raise self._found(event.cell, f"reduces into {mine}, which is not the rank's own")
        buffered = self._buffered.pop((rank, event.instruction.chunk), {})
        if missing := set(self._everything) - {*own, *buffered}:
            reason = f"the contribution of {_ranks(missing)} is not buffered"
            if self.plan.runs is not None:
                reason = f"the part of {_ranks(missing, 'node')} is not buffered"
            raise self._found(event.cell, reason)
        return _Value(self._everything, final=True, chained=self.plan.runs is None)

    def _received(self, event: Event) -> _Value:
        assert event.sent_by is not None, "every receive that ran has its send"
        return self._sent[event.sent_by]

    def _cycle(self, blocked: tuple[Cell, ...]) -> tuple[Cell, str]:
        """Find a cycle of ranks that wait for each other; every blocked receive has a sender.

        Returns an instruction of the cycle and the phrase that describes the cycle.
        """
        waiting = {(cell[0], self._at(cell).chunk): cell for cell in blocked}
        chunk = self._at(blocked[0]).chunk
        path = [blocked[0][0]]
        while (peer := self._at(waiting[path[-1], chunk]).peer) not in path:
            path.append(peer)
        ring = path[path.index(peer) :]
        links = "".join(f", which waits for rank {rank}" for rank in [*ring[2:], ring[0]])
        first = ring[1] if len(ring) > 1 else ring[0]
        return waiting[ring[0], chunk], f"waits for rank {first}{links}: no one can go on"

    def _at(self, cell: Cell) -> Instruction:
        return self.plan.programs[cell[0]][cell[1]]

    def _found(self, cell: Cell, reason: str) -> _Found:
        token = str(self._at(cell))
        return _Found(Fault(rank=cell[0], index=cell[1], token=token, reason=reason))


def _ranks(ranks: Iterable[int], name: str = "rank") -> str:
    listed = sorted(ranks)
    return f"{name}{'s' if len(listed) > 1 else ''} {', '.join(map(str, listed))}"
