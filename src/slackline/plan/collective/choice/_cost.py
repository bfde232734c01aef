"""The cost model of plans: an estimate counted from a plan's own instructions.

One engine thread receives, reduces and sends, so four terms add up:

    time = steps * latency + messages * overhead + port bytes / rate + reduced / reduce rate

Ranks that share a processor handle their messages one after another. If the messages of the ranks
of one processor take longer than the first two terms, their time replaces these terms.

steps         the longest chain of messages in which each message waits for the previous one
messages      the messages that the busiest rank sends and receives
port bytes    the bytes that the busiest rank sends or receives, the larger: links are full duplex
reduced       the bytes that the busiest rank receives in order to reduce them

A rank forwards segments while later ones still arrive, so the bytes of a chain of hops count once,
and not once for each hop. With shared memory there are no ports, and port bytes are the bytes that
a rank copies: its own data once for each chunk that it sends (peers read the copy), and the data
that COPY stores. ADD and REDUCE_ALL read the peers' memory in place, which counts as reduced bytes.
The model gives a helper (a member without data of its own) one port for each rank.
"""

from collections.abc import Sequence
from operator import truediv

from slackline._lazy import record
from slackline.errors import UsageError
from slackline.plan.collective._plan import Collective, CollectivePlan, Kind
from slackline.plan.collective._split import split
from slackline.plan.collective._trace import trace

__all__ = ["CostParameters", "Estimate", "estimate"]

_SECOND_NS = 10**9


@record(frozen=True, slots=True, kw_only=True)
class CostParameters:
    """The speed of the network and the machines of a group."""

    latency_ns: int
    """The time from a send to its receive, for an empty message."""
    bytes_per_second: float
    """The rate of one rank's port in each direction; with shared memory, the rate of copying."""
    reduce_bytes_per_second: float
    """The rate at which one rank reads incoming bytes and reduces them."""
    per_message_overhead_ns: int = 0
    """The time that a rank spends on each message that it sends or receives."""
    shared_memory: bool = False
    """Whether all ranks are on one host and read each other's memory."""
    ranks_per_processor: float = 1
    """The number of ranks that share a processor, at least 1."""

    def __post_init__(self) -> None:
        for name in ("latency_ns", "per_message_overhead_ns"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must be at least 0, not {getattr(self, name)}")
        for name in ("bytes_per_second", "reduce_bytes_per_second"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} must be positive, not {getattr(self, name)}")
        if not self.ranks_per_processor >= 1:
            raise UsageError(
                f"ranks_per_processor must be at least 1, not {self.ranks_per_processor}"
            )

    def handling_ns(self, steps: int, busiest: int, mean: float) -> float:
        """Return the time of a plan's messages without their bytes, in nanoseconds.

        `busiest` is the number of messages that the busiest rank sends and receives, `mean` the
        mean over the ranks.
        """
        alone_ns = steps * self.latency_ns + busiest * self.per_message_overhead_ns
        return max(alone_ns, self.ranks_per_processor * mean * self.per_message_overhead_ns)


@record(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The terms of a plan's cost and their sum."""

    steps: int
    messages: int
    port_bytes: int
    reduced_bytes: int
    time_ns: int


def estimate(
    plan: CollectivePlan,
    nbytes: int,
    parameters: CostParameters,
    *,
    accumulate_ratio: float = 1,
    port_rates: Sequence[float] | None = None,
) -> Estimate:
    """Estimate the cost of the plan for a buffer of `nbytes` bytes, all chunks together.

    In all_to_all, where a rank has n of the n * n chunks, `nbytes` is the size of one rank's
    buffer. `accumulate_ratio` is the size of an element of a partial sum over the size of an
    element. The ratio is 2 for half types that must be reduced in rank order, since the partial
    sums stay fp32 until the end. `port_rates` has the rate of each rank's port in bytes per second
    where ports differ; None takes the parameters' rate for all. Raises UsageError for a negative
    `nbytes`, or a wrong number of rates.
    """
    if nbytes < 0:
        raise UsageError(f"nbytes must be at least 0, not {nbytes}")
    if port_rates is not None and len(port_rates) != plan.ranks:
        raise UsageError(f"{plan.ranks} ranks need {plan.ranks} port rates, not {len(port_rates)}")
    sizes = _chunk_bytes(plan, nbytes)
    depth = dict.fromkeys(((r, c) for r in range(plan.members) for c in range(plan.chunks)), 0)
    sent_at: dict[tuple[int, int], int] = {}
    messages, sent, received, copied, reduced = ([0] * plan.members for _ in range(5))
    touched: set[tuple[int, int]] = set()
    for event in trace(plan).events:
        rank, instruction = event.cell[0], event.instruction
        place = rank, instruction.chunk
        if instruction.kind is Kind.SEND:
            sent_at[event.cell] = depth[place]
            if place not in touched:
                copied[rank] += sizes[instruction.chunk]
            touched.add(place)
        if event.sent_by is None:
            continue
        depth[place] = max(depth[place], sent_at[event.sent_by] + 1)
        size = sizes[instruction.chunk]
        if instruction.kind is Kind.ADD:
            size = int(size * accumulate_ratio)
        for side in (rank, instruction.peer):
            messages[side] += 1
        sent[instruction.peer] += size
        received[rank] += size
        (copied if instruction.kind is Kind.COPY else reduced)[rank] += size
        touched.add(place)
    steps = max(depth.values())
    ports = list(map(max, sent[: plan.ranks], received[: plan.ranks]))
    port_bytes = max(copied) if parameters.shared_memory else max(ports)
    port_ns = port_bytes * _SECOND_NS / parameters.bytes_per_second
    if port_rates is not None:
        port_ns = max(map(truediv, ports, port_rates)) * _SECOND_NS
    time_ns = (
        parameters.handling_ns(steps, max(messages), sum(messages[: plan.ranks]) / plan.ranks)
        + port_ns
        + max(reduced) * _SECOND_NS / parameters.reduce_bytes_per_second
    )
    return Estimate(
        steps=steps,
        messages=max(messages),
        port_bytes=port_bytes,
        reduced_bytes=max(reduced),
        time_ns=round(time_ns),
    )


def _chunk_bytes(plan: CollectivePlan, nbytes: int) -> tuple[int, ...]:
    parts = plan.ranks if plan.collective is Collective.ALL_TO_ALL else plan.chunks
    sizes = tuple(size for _, size in split(nbytes, parts, 1, plan.weights))
    return sizes * (plan.chunks // parts)
