"""The order in which a plan's instructions can run, with every receive matched to its send.

A rank runs the instructions of one chunk in the order listed. Messages from one rank to another
about one chunk arrive in the order sent. Nothing else is ordered. No instruction ever chooses among
messages, so in every order that an engine finds, each receive gets the same message and each value
is the same (Kahn, The semantics of a simple language for parallel programming, 1974). One order
therefore stands for all possible orders.
"""

from collections import deque
from collections.abc import Iterator

from slackline._lazy import record
from slackline.plan.collective._plan import CollectivePlan, Instruction, Kind

__all__ = ["Cell", "Event", "Trace", "trace"]

Cell = tuple[int, int]
"""The position of an instruction in a plan: (rank, index in its program)."""


@record(frozen=True, slots=True)
class Event:
    """An instruction that ran in a trace, with the SEND that it received from."""

    cell: Cell
    instruction: Instruction
    sent_by: Cell | None
    """For a receive, the position of the SEND whose message it got."""


@record(frozen=True, slots=True)
class Trace:
    """The result of a run: the instructions that ran, in a possible order, and those left."""

    events: tuple[Event, ...]
    blocked: tuple[Cell, ...]
    """The receives that wait for ever, sorted: one for each (rank, chunk) that is not finished."""
    behind: tuple[Cell, ...]
    """The instructions that follow a blocked receive of their chunk and therefore never run."""
    unreceived: tuple[Cell, ...]
    """The sends that ran and whose message no rank received."""


def trace(plan: CollectivePlan) -> Trace:
    """Run the plan without data and return its trace.

    Peers and chunks must be in range, which `check` verifies first.
    """
    strands: dict[tuple[int, int], deque[tuple[int, Instruction]]] = {}
    for rank, index, instruction in plan.cells():
        strands.setdefault((rank, plan.strand(instruction)), deque()).append((index, instruction))
    travelling: dict[tuple[int, int, int], deque[Cell]] = {}
    ready = deque(strands)
    events: list[Event] = []
    while ready:
        rank, chunk = ready.popleft()
        for event in _run(rank, strands[rank, chunk], travelling):
            events.append(event)
            if event.instruction.kind is not Kind.SEND:
                continue
            number, peer = event.instruction.chunk, event.instruction.peer
            # The message may be for the strand of its chunk, or for that of its part.
            ready.extend(
                (peer, waits) for waits in {number, number % plan.ranks} if (peer, waits) in strands
            )
    waiting = [strand for strand in strands.items() if strand[1]]
    return Trace(
        tuple(events),
        tuple(sorted((rank, strand[0][0]) for (rank, _), strand in waiting)),
        tuple(sorted((rank, index) for (rank, _), rest in waiting for index, _ in list(rest)[1:])),
        tuple(sorted(cell for queue in travelling.values() for cell in queue)),
    )


def _run(
    rank: int,
    strand: deque[tuple[int, Instruction]],
    travelling: dict[tuple[int, int, int], deque[Cell]],
) -> Iterator[Event]:
    """Run the instructions of one (rank, chunk) up to a receive whose message has not been sent."""
    while strand:
        index, instruction = strand[0]
        sent_by = None
        if instruction.kind is Kind.SEND:
            link = (rank, instruction.peer, instruction.chunk)
            travelling.setdefault(link, deque()).append((rank, index))
        elif instruction.kind.receives:
            messages = travelling.get((instruction.peer, rank, instruction.chunk))
            if not messages:
                return
            sent_by = messages.popleft()
        strand.popleft()
        yield Event((rank, index), instruction, sent_by)
