"""Times that no execution of a plan on a fabric can undercut, however the queues are served.

There are two such bounds, and the larger one holds:

    ports    the bytes of each host over the rates of its NICs, and the lowest latency to a host
    path     the longest chain of frames that wait for each other, each alone on the network
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slackline.plan.collective import Event, Kind, trace
from slackline.sim._fabric import Fabric, Host, transmission_ps
from slackline.sim._operation import Operation

__all__ = ["Bound", "lower_bound"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Lower bounds of a collective's time, in picoseconds."""

    ports_ps: int
    """The time that the bytes of the busiest host need at its ports, or in its memory."""
    path_ps: int
    """The time of the longest chain of steps that wait for each other, without any queue."""

    @property
    def time_ps(self) -> int:
        """The larger one of the two bounds."""
        return max(self.ports_ps, self.path_ps)


def lower_bound(
    operation: Operation, fabric: Fabric, placement: Sequence[int] | None = None
) -> Bound:
    """Return the bounds for a collective whose members all begin at time 0.

    `placement` is the host of each member, helpers included; without it member i is on host i.
    """
    hosts = tuple(range(operation.plan.members)) if placement is None else tuple(placement)
    walk = _Walk(operation, fabric, hosts)
    for event in trace(operation.plan).events:
        walk.step(event)
    return Bound(ports_ps=walk.ports_ps(), path_ps=max(walk.reached_ps.values(), default=0))


class _Walk:
    """The earliest time of each step, for the longest segment alone, and the bytes of each port."""

    def __init__(self, operation: Operation, fabric: Fabric, hosts: tuple[int, ...]) -> None:
        self._operation, self._fabric, self._hosts = operation, fabric, hosts
        self._counts = [operation.segment_counts(c) for c in range(operation.plan.chunks)]
        self.reached_ps: dict[tuple[int, int], int] = {}
        self._sent: dict[tuple[int, int], tuple[int, bool]] = {}
        self._final: set[tuple[int, int]] = set()
        self._held: dict[tuple[int, int], int] = {}
        self._out = [0] * len(fabric.hosts)
        self._in = [0] * len(fabric.hosts)
        self._memory = [0] * len(fabric.hosts)
        self._nearest: dict[int, int] = {}

    def step(self, event: Event) -> None:
        """Account for one instruction; a receive must come after its send."""
        instruction, operation = event.instruction, self._operation
        member, chunk = event.cell[0], instruction.chunk
        plan = operation.plan
        place = (member, plan.strand(instruction))
        host = self._fabric.hosts[self._hosts[member]]
        longest = max(self._counts[chunk])
        now_ps = self.reached_ps.get(place, 0)
        if instruction.kind is Kind.SEND:
            partial = operation.plan.collective.reduces and place not in self._final
            now_ps += host.frame_ps
            self._sent[event.cell] = (now_ps, partial)
            self.reached_ps[place] = now_ps
            return
        if instruction.kind is Kind.REDUCE_ALL:
            sums = self._held.pop(place, 0)
            if plan.runs is not None:
                sums += len(plan.contributions(member)) - 1
            nbytes = operation.payload_bytes(longest, partial=True) * sums
            self.reached_ps[place] = now_ps + host.reducing_ps(nbytes)
            self._final.add(place)
            return
        assert event.sent_by is not None, "every receive that ran has its send"
        sent_ps, partial = self._sent[event.sent_by]
        source = event.sent_by[0]
        self._count(source, member, chunk, partial=partial)
        nbytes = operation.payload_bytes(longest, partial=partial)
        arrived_ps = sent_ps + self._alone_ps(source, member, nbytes) + host.frame_ps
        now_ps = max(now_ps, arrived_ps)
        if instruction.kind is Kind.ADD:
            now_ps += host.reducing_ps(operation.payload_bytes(longest, partial=True))
        if instruction.kind is Kind.BUFFER:
            self._held[place] = self._held.get(place, 0) + 1
        if instruction.kind is Kind.COPY or instruction.last:
            self._final.add(place)
        self.reached_ps[place] = now_ps

    def ports_ps(self) -> int:
        """Return the time of the busiest host's bytes."""
        found = [0]
        for number, host in enumerate(self._fabric.hosts):
            rate_bps = sum(host.rates_bps)
            if nbytes := max(self._out[number], self._in[number]):
                nbytes = max(0, nbytes - len(host.rates_bps) * host.burst_bytes)
                found.append(transmission_ps(nbytes, rate_bps) + self._nearest[number])
            if self._memory[number] and host.memory_bytes_per_second is not None:
                nbytes, rate_bps = self._memory[number], 8 * host.memory_bytes_per_second
                found.append(transmission_ps(nbytes, rate_bps) + host.memory_latency_ps)
        return max(found)

    def _count(self, source: int, target: int, chunk: int, *, partial: bool) -> None:
        """Add the bytes of a message between two members to the totals of their hosts."""
        ends = self._hosts[source], self._hosts[target]
        payloads = [self._operation.payload_bytes(n, partial=partial) for n in self._counts[chunk]]
        if ends[0] == ends[1]:
            self._memory[ends[0]] += sum(payloads)
            return
        nbytes = sum(map(self._fabric.framing.wire_bytes, payloads))
        self._out[ends[0]] += nbytes
        self._in[ends[1]] += nbytes
        latency_ps = self._fabric.latency_ps(*ends)
        for end in ends:
            self._nearest[end] = min(self._nearest.get(end, latency_ps), latency_ps)

    def _alone_ps(self, source: int, target: int, payload_bytes: int) -> int:
        """Return the time of one frame on an idle network, over the fastest pair of NICs."""
        ends = self._hosts[source], self._hosts[target]
        first, second = (self._fabric.hosts[end] for end in ends)
        latency_ps = self._fabric.latency_ps(*ends)
        if ends[0] == ends[1]:
            rate = first.memory_bytes_per_second
            return latency_ps + (transmission_ps(payload_bytes, 8 * rate) if rate else 0)
        nbytes = self._fabric.framing.wire_bytes(payload_bytes)
        least = self._fabric.forwards_after_bytes
        head = nbytes if least is None else min(least, nbytes)
        times = []
        for sends_bps, receives_bps in zip(first.rates_bps, second.rates_bps, strict=True):
            begun_ps = _passing_ps(first, head, sends_bps)
            ended_ps = _passing_ps(first, nbytes, sends_bps)
            last_ps = ended_ps + _passing_ps(second, head, receives_bps)
            times.append(max(begun_ps + _passing_ps(second, nbytes, receives_bps), last_ps))
        return latency_ps + min(times)


def _passing_ps(host: Host, nbytes: int, rate_bps: int) -> int:
    """Return the time that bytes take through an idle port, which lets a burst pass at once."""
    return transmission_ps(max(0, nbytes - host.burst_bytes), rate_bps)
