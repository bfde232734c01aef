"""The execution of one collective's plan, segment by segment, as the engine executes it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from slackline.errors import UsageError
from slackline.plan.collective import Kind
from slackline.sim._machine import Machine
from slackline.sim._operation import Operation, Step
from slackline.sim._rotation import Rotation
from slackline.sim._wires import Frame

__all__ = ["Arithmetic", "Execution", "SentFrame", "Symbols"]


class Arithmetic(Protocol):
    """The values that a simulation moves, and how they are reduced."""

    def contribution(self, rank: int, chunk: int, segment: int) -> Any:
        """Return the value of a rank for one segment of a chunk."""

    def add(self, incoming: Any, mine: Any, *, last: bool) -> Any:
        """Return the result of an ADD; `last` where the chunk is then complete."""

    def fold(self, values: Sequence[Any]) -> Any:
        """Return the result of a FOLD over the values of all ranks, in rank order."""


class Symbols:
    """Values that show in which order they were reduced: "((x0 + x1) + x2)"."""

    def contribution(self, rank: int, chunk: int, segment: int) -> str:
        """Return "x3" for rank 3."""
        return f"x{rank}"

    def add(self, incoming: str, mine: str, *, last: bool) -> str:
        """Return the sum of what has arrived and the rank's own value."""
        return f"({incoming} + {mine})"

    def fold(self, values: Sequence[str]) -> str:
        """Return the sum in the order of the values."""
        total = values[0]
        for value in values[1:]:
            total = f"({total} + {value})"
        return total


@dataclass(frozen=True, slots=True)
class SentFrame:
    """A frame that a member has handed to its NICs."""

    source: int
    target: int
    chunk: int
    segment: int
    payload_bytes: int
    partial: bool
    """Whether the value is not final: a rank's own data or a partial sum."""
    queued_ps: int
    """The time at which the frame joined the queue of the host."""


class _Segment:
    """A segment of a chunk at a member, on its way through the steps of its strand."""

    __slots__ = ("arrived", "busy", "count", "held", "mine", "number", "position")

    def __init__(self, number: int, count: int, mine: Any) -> None:
        self.number, self.count, self.mine = number, count, mine
        self.position = 0
        self.busy = False
        self.arrived: dict[tuple[int, int], Any] = {}
        """The values that have arrived, by (peer, turn)."""
        self.held: dict[int, Any] = {}


class _Member:
    """The part of one member in an execution."""

    __slots__ = (
        "arrivals",
        "begun",
        "chunks",
        "early",
        "ended_ps",
        "gated",
        "open_segments",
        "open_sends",
    )

    def __init__(self) -> None:
        self.begun = False
        self.gated = False
        self.ended_ps: int | None = None
        self.open_segments = 0
        self.open_sends = 0
        self.early: list[tuple[int, int, tuple[int, int], Any]] = []
        """The arguments of `_take` for frames that came before the member began."""
        self.arrivals: dict[int, int] = {}
        self.chunks: dict[int, tuple[tuple[Step, ...], list[_Segment]]] = {}


class Execution:
    """An operation on the members of a machine; each member begins when `begin` is called."""

    def __init__(
        self,
        machine: Machine,
        operation: Operation,
        *,
        members: Sequence[int] | None = None,
        arithmetic: Arithmetic | None = None,
        ended: Callable[[int], None] | None = None,
        record: bool = False,
        rotation: Rotation | None = None,
    ) -> None:
        """Prepare an operation of a plan's members, each of them one of the machine's `members`.

        Without `members` they are the machine's first ones. `ended` is called with the plan's
        number of each member that has ended. `record` keeps every frame in `frames`. With a
        `rotation` only the ranks of the plan's host 0 are members: they are on the machine's host 0
        and receive their own frames to other hosts, through the ports of the machine's host 1.
        """
        plan = operation.plan
        self.operation = operation
        self.frames: list[SentFrame] = []
        self.messages = 0
        """The number of frames that were sent."""
        self._machine, self._arithmetic, self._record = machine, arithmetic, record
        self._ended = ended
        self._rotation = rotation
        count = plan.members if rotation is None else rotation.ranks_per_host
        self._of = tuple(range(count)) if members is None else tuple(members)
        if len(self._of) != count or max(self._of) >= len(machine.placement):
            raise UsageError(
                f"{plan} needs {count} members of {len(machine.placement)}, not {self._of}"
            )
        self._members = [_Member() for _ in range(count)]
        for number in range(count):
            self._lay_out(number)
        self._open = count

    @property
    def finished(self) -> bool:
        """Whether all members have ended."""
        return not self._open

    def ended_ps(self, member: int) -> int:
        """Return the time at which a member ended; UsageError where it has not."""
        time_ps = self._members[member].ended_ps
        if time_ps is None:
            raise UsageError(f"member {member} has not ended")
        return time_ps

    def begin(self, member: int) -> None:
        """Let a member begin now: the first segment of every chunk, then the second, and so on."""
        state = self._members[member]
        state.begun = True
        segments = max((len(cut) for _, cut in state.chunks.values()), default=0)
        for number in range(segments):
            for chunk, (_, cut) in state.chunks.items():
                if number < len(cut):
                    self._advance(member, chunk, cut[number])
        for arrival in state.early:
            self._take(member, *arrival)
        state.early.clear()
        self._check_end(member)

    def values(self, rank: int) -> dict[int, tuple[Any, ...]]:
        """Return the final values that are due at a rank: by chunk, segment by segment."""
        plan = self.operation.plan
        found = {}
        for chunk in range(plan.chunks):
            if plan.collective.due(rank, chunk, plan.ranks, plan.root):
                found[chunk] = self._values_of(rank, chunk)
        return found

    def _values_of(self, rank: int, chunk: int) -> tuple[Any, ...]:
        if chunk in self._members[rank].chunks:
            return tuple(segment.mine for segment in self._members[rank].chunks[chunk][1])
        segments = range(len(self.operation.segment_counts(chunk)))
        return tuple(self._own(rank, chunk, number) for number in segments)

    def _lay_out(self, member: int) -> None:
        operation, state = self.operation, self._members[member]
        for strand in operation.strands(member):
            counts = operation.segment_counts(strand.chunk)
            cut = [
                _Segment(number, count, self._own(member, strand.chunk, number))
                for number, count in enumerate(counts)
            ]
            state.chunks[strand.chunk] = (strand.steps, cut)
            state.open_segments += len(cut)
        state.gated = member >= operation.plan.ranks and operation.onset != 1

    def _own(self, member: int, chunk: int, segment: int) -> Any:
        plan = self.operation.plan
        if self._arithmetic is None or member >= plan.ranks:
            return None
        if not plan.collective.has(member, chunk, plan.ranks, plan.root):
            return None
        return self._arithmetic.contribution(member, chunk, segment)

    def _advance(self, member: int, chunk: int, segment: _Segment) -> None:
        """Let a segment pass every step for which it has what it needs."""
        if segment.busy:
            return
        steps = self._members[member].chunks[chunk][0]
        while segment.position < len(steps):
            step = steps[segment.position]
            instruction = step.instruction
            key = (instruction.peer, step.turn)
            match instruction.kind:
                case Kind.SEND:
                    self._send(member, chunk, segment, step)
                case Kind.HOLD:
                    if key not in segment.arrived:
                        return
                    segment.held[instruction.peer] = segment.arrived.pop(key)
                case Kind.FOLD:
                    if not self._members[member].gated:
                        self._reduce(member, chunk, segment, step, len(segment.held))
                    return
                case Kind.ADD | Kind.COPY:
                    if key in segment.arrived:
                        self._reduce(
                            member, chunk, segment, step, int(instruction.kind is Kind.ADD)
                        )
                    return
            segment.position += 1
        segment.busy = True  # The segment has passed its last step and stays as it is.
        self._members[member].open_segments -= 1

    def _reduce(
        self, member: int, chunk: int, segment: _Segment, step: Step, operands: int
    ) -> None:
        """Let the member's engine reduce `operands` values into the segment, then go on."""
        machine, of = self._machine, self._of[member]
        nbytes = self.operation.payload_bytes(segment.count, partial=True) * operands
        work_ps = machine.fabric.hosts[machine.placement[of]].reducing_ps(nbytes)
        segment.busy = True
        machine.engines[of].run(work_ps, self._reduced, member, chunk, segment, step)

    def _reduced(self, member: int, chunk: int, segment: _Segment, step: Step) -> None:
        instruction, values = step.instruction, self._arithmetic
        if instruction.kind is Kind.FOLD:
            held = segment.held
            if values is not None:
                own = {} if member >= self.operation.plan.ranks else {member: segment.mine}
                everyone = held | own
                segment.mine = values.fold([everyone[rank] for rank in sorted(everyone)])
            segment.held = {}
        else:
            incoming = segment.arrived.pop((instruction.peer, step.turn))
            if instruction.kind is Kind.COPY:
                segment.mine = incoming
            elif values is not None:
                segment.mine = values.add(incoming, segment.mine, last=instruction.last)
        segment.busy = False
        segment.position += 1
        self._advance(member, chunk, segment)
        self._check_end(member)

    def _send(self, member: int, chunk: int, segment: _Segment, step: Step) -> None:
        machine, peer = self._machine, step.instruction.peer
        self._members[member].open_sends += 1
        self.messages += 1
        source = machine.placement[self._of[member]]
        sender, about = member, chunk
        if self._rotation is None:
            target = machine.placement[self._of[peer]]
        else:
            target = int(peer >= self._rotation.ranks_per_host)
            peer, sender, about = self._rotation.seen_by(peer, member, chunk)
        nbytes = self.operation.payload_bytes(segment.count, partial=step.partial)
        frame = Frame(
            source,
            target,
            nbytes,
            self.operation.priority,
            partial(self._sent, member),
            partial(self._arrived, peer, about, segment.number, (sender, step.turn), segment.mine),
        )
        sent = None
        if self._record:
            sent = (member, peer, chunk, segment.number, nbytes, step.partial)
        work_ps = machine.fabric.hosts[source].frame_ps
        machine.engines[self._of[member]].run(work_ps, self._queue, frame, sent)

    def _queue(self, frame: Frame, sent: tuple[int, int, int, int, int, bool] | None) -> None:
        if sent is not None:
            self.frames.append(SentFrame(*sent, self._machine.events.now_ps))
        self._machine.wires.send(frame)

    def _sent(self, member: int) -> None:
        self._members[member].open_sends -= 1
        self._check_end(member)

    def _arrived(
        self, member: int, chunk: int, number: int, key: tuple[int, int], value: Any
    ) -> None:
        of = self._of[member]
        work_ps = self._machine.fabric.hosts[self._machine.placement[of]].frame_ps
        self._machine.engines[of].run(work_ps, self._take, member, chunk, number, key, value)

    def _take(self, member: int, chunk: int, number: int, key: tuple[int, int], value: Any) -> None:
        state = self._members[member]
        if not state.begun:
            state.early.append((chunk, number, key, value))
            return
        segment = state.chunks[chunk][1][number]
        segment.arrived[key] = value
        if state.gated:
            self._count(member, key[0])
        self._advance(member, chunk, segment)
        self._check_end(member)

    def _count(self, member: int, peer: int) -> None:
        """Open the gate of a helper once it has `onset` segments of every rank."""
        state, plan = self._members[member], self.operation.plan
        state.arrivals[peer] = state.arrivals.get(peer, 0) + 1
        whole = sum(len(cut) for _, cut in state.chunks.values())
        enough = min(self.operation.onset or whole, whole)
        if any(state.arrivals.get(rank, 0) < enough for rank in range(plan.ranks)):
            return
        state.gated = False
        for chunk, (_, cut) in state.chunks.items():
            for segment in cut:
                self._advance(member, chunk, segment)

    def _check_end(self, member: int) -> None:
        state = self._members[member]
        if state.open_segments or state.open_sends or not state.begun:
            return
        if state.ended_ps is None:
            state.ended_ps = self._machine.events.now_ps
            self._open -= 1
            if self._ended is not None:
                self._ended(member)
