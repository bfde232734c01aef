"""Steps of slackline.pipeline as slices: instructions, messages, and arrows along the messages.

    rank 0, pipeline   [ 0F0 ][ 0F1 ]
    rank 1, messages         [ 0F0   ]
                             ^        v
            pipeline                  [ 1F0 ]

An arrow leads from the instruction that computed a message to the message, and from there to the
instruction that needs it. A message lasts from the end of its instruction to its arrival.
"""

from collections.abc import Callable, Collection, Iterator
from itertools import count

from slackline.plan.pipeline import Instruction, Kind
from slackline.records import PipelineStep
from slackline.views.trace._events import Event, Instant, Lanes, Slice, Track
from slackline.views.trace._window import Family, Window

__all__ = ["PipelineEvents"]

_MOST_HELD = 4096
"""The number of steps that are held until the other ranks' records of them have come."""


class _Placed:
    """A pipeline step of one rank by the reference clock."""

    def __init__(self, record: PipelineStep, begin_ns: int) -> None:
        """Take a record whose step began at `begin_ns`; raise ValueError for a damaged one."""
        timed = (record.start_ns, record.end_ns)
        if any(len(column) != len(record.tokens) for column in timed):
            raise ValueError(f"the times of its {len(record.tokens)} instructions differ in number")
        if len(record.arrived_ns) != len(record.senders):
            raise ValueError(f"the times of its {len(record.senders)} arrivals differ in number")
        self.record = record
        self.begin_ns = begin_ns
        self.spans: dict[str, tuple[int, int]] = {}
        """The start and the end of each instruction."""
        reached_ns = begin_ns
        for token, start_ns, end_ns in zip(record.tokens, *timed, strict=True):
            start_ns = max(reached_ns, begin_ns + start_ns)
            reached_ns = max(start_ns, begin_ns + end_ns)
            self.spans[token] = start_ns, reached_ns
        self.end_ns = max(reached_ns, begin_ns + record.wall_ns)
        self.instructions = {token: Instruction.parse(token) for token in record.tokens}
        self.messages = [
            (Instruction.parse(token), begin_ns + arrived_ns)
            for token, arrived_ns in zip(record.senders, record.arrived_ns, strict=True)
        ]
        self.flows: dict[str, tuple[list[int], list[int]]] = {}
        """The arrows from and to each instruction."""

    def arrows(self, token: str) -> tuple[list[int], list[int]]:
        """Return the arrows from an instruction and to it."""
        return self.flows.setdefault(token, ([], []))


class PipelineEvents:
    """The slices of all ranks' pipeline steps, and the arrows between them."""

    def __init__(
        self, unix_ns: Callable[[int, int], int], ranks: Collection[int], flows: "count[int]"
    ) -> None:
        """Match the records of `ranks`; take the numbers of arrows from `flows`.

        `unix_ns` converts a rank's Unix time to that of the reference clock.
        """
        self._unix_ns, self._ranks, self._flows = unix_ns, ranks, flows
        self._window = Window[_Placed](_MOST_HELD)
        self._ends: dict[int, int] = {}
        self._lanes = Lanes()
        self.arrows = 0
        """The number of arrows so far."""

    def take(self, record: PipelineStep) -> Iterator[Event]:
        """Yield the events of the steps that have become complete with this record."""
        began_ns = self._unix_ns(record.rank, record.time_ns)
        placed = _Placed(record, max(began_ns, self._ends.get(record.rank, began_ns)))
        self._ends[record.rank] = placed.end_ns
        for family in self._window.add(record.step, record.rank, placed, self._ranks):
            yield from self._draw(family)

    def finish(self) -> Iterator[Event]:
        """Yield the events of the steps that have remained incomplete."""
        for family in self._window.finish():
            yield from self._draw(family)

    def _draw(self, family: Family[_Placed]) -> Iterator[Event]:
        computed: dict[str, list[_Placed]] = {}
        for placed in family.members.values():
            for token in placed.spans:
                computed.setdefault(token, []).append(placed)
        messages: list[Event] = []
        for placed in family.members.values():
            for instruction, arrived_ns in placed.messages:
                sources = computed.get(str(instruction), [])
                # Replicas of a pipeline compute instructions of the same names.
                source = sources[0] if family.complete and len(sources) == 1 else None
                messages.append(self._message(placed, instruction, arrived_ns, source))
        for placed in family.members.values():
            yield from _instructions(placed)
        yield from messages

    def _message(
        self, placed: _Placed, sender: Instruction, arrived_ns: int, source: _Placed | None
    ) -> Event:
        """Return the event of one arrival; note its arrows at both instructions."""
        token, rank = str(sender), placed.record.rank
        arguments = {"stage": sender.stage, "microbatch": sender.microbatch}
        if source is None:
            return Instant(
                track=Track(rank, "arrivals"),
                name=token,
                category="message",
                time_ns=arrived_ns,
                arguments=arguments,
            )
        sent_ns = min(source.spans[token][1], arrived_ns)
        flow = next(self._flows)
        source.arrows(token)[0].append(flow)
        flows_out: tuple[int, ...] = ()
        needing = _receiver(sender, placed)
        # An arrow leads to a later event; without a duration, the message is at the same time.
        if needing is not None and sent_ns < arrived_ns <= placed.spans[needing][0]:
            flows_out = (next(self._flows),)
            placed.arrows(needing)[1].extend(flows_out)
        self.arrows += 1 + len(flows_out)
        return Slice(
            track=self._lanes.track(rank, "messages", sent_ns, arrived_ns),
            name=token,
            category="message",
            begin_ns=sent_ns,
            end_ns=arrived_ns,
            arguments={**arguments, "from rank": source.record.rank},
            flows_in=(flow,),
            flows_out=flows_out,
        )


def _receiver(sender: Instruction, placed: _Placed) -> str | None:
    """Return the instruction on the rank that needs the sender's message; None without one."""
    stage = sender.stage - 1 if sender.kind.backward else sender.stage + 1
    kinds = (Kind.B, Kind.BW) if sender.kind.backward else (Kind.F,)
    tokens = (f"{stage}{kind}{sender.microbatch}" for kind in kinds)
    return next((token for token in tokens if token in placed.spans), None)


def _instructions(placed: _Placed) -> Iterator[Event]:
    """Yield the slice of a step and those of its instructions."""
    record = placed.record
    track = Track(record.rank, "pipeline")
    yield Slice(
        track=track,
        name=f"pipeline step {record.step}",
        category="pipeline",
        begin_ns=placed.begin_ns,
        end_ns=placed.end_ns,
        arguments={
            "plan": record.plan,
            "policy": record.policy,
            "change": record.change,
            "computing_ns": record.computing_ns,
            "waiting_ns": record.waiting_ns,
        },
    )
    for token, (start_ns, end_ns) in placed.spans.items():
        instruction = placed.instructions[token]
        out, into = placed.arrows(token)
        yield Slice(
            track=track,
            name=token,
            category="pipeline",
            begin_ns=start_ns,
            end_ns=end_ns,
            arguments={
                "stage": instruction.stage,
                "kind": str(instruction.kind),
                "microbatch": instruction.microbatch,
            },
            flows_out=tuple(out),
            flows_in=tuple(into),
        )
