"""The simulation of an all_reduce round a ring of many unequal hosts, as flows instead of frames.

A host's part of one step of the ring, the chunks of all its ranks, is one flow:

    ready    the first segments have been added     -> the flow begins once the port is free
    begun    + bytes / rate, and not before the last segments are there  -> ended
    arrived  the later of the sender's end and the receiver's own rate, and the latency

The simulation of a host takes a few additions for each step, however many ranks and frames the host
has. The result differs from that of `simulate_collective` where flows of one port overlap, or where
tasks share the cores in an order other than the order of the steps. The two results are equal with
one rank on each host and no processor time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import slackline._native as _native
from slackline.errors import UsageError
from slackline.plan.collective import Collective
from slackline.sim._fabric import Fabric, Host, transmission_ps
from slackline.sim._operation import Operation

__all__ = ["FlowRun", "check_flows", "simulate_flows"]

_RINGS = ("ring", "hierarchical")
_Times = tuple[int, int, int, int, int, int, int, int, int, int, int, int]
"""The times of a host, in the order of the native function's arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRun:
    """The outcome of an all_reduce that was simulated by flows."""

    ended_ps: tuple[int, ...]
    """For each host, the time at which all its ranks had the result, in picoseconds."""
    sent_bytes: tuple[int, ...]
    """For each host, the bytes that its NICs have sent, headers and packets included."""
    flows: int
    """The number of flows between hosts."""

    @property
    def duration_ps(self) -> int:
        """The time from the start of the simulation to the end of the last host."""
        return max(self.ended_ps)


def check_flows(operation: Operation, ranks_per_host: int) -> int:
    """Return the number of hosts in the plan's ring; raise UsageError for a plan without one."""
    plan = operation.plan
    if plan.collective is not Collective.ALL_REDUCE or plan.name not in _RINGS:
        raise UsageError(f"{plan} is no ring of hosts; the plans {', '.join(sorted(_RINGS))} are")
    if plan.name == "ring" and ranks_per_host != 1:
        raise UsageError(
            f"flows simulate the plan ring with one rank on each host, not {ranks_per_host}; "
            "take the plan hierarchical"
        )
    if ranks_per_host < 1 or plan.ranks % ranks_per_host:
        raise UsageError(
            f"ranks_per_host must be a divisor of {plan.ranks} ranks, not {ranks_per_host}"
        )
    return plan.ranks // ranks_per_host


def simulate_flows(
    operation: Operation,
    fabric: Fabric,
    *,
    ranks_per_host: int = 1,
    starts_ps: Sequence[int] | None = None,
) -> FlowRun:
    """Execute a ring or a hierarchical all_reduce by flows.

    Rank i is on host i // ranks_per_host. Hosts may differ, and begin at `starts_ps`, 0 if not
    given; equal hosts are simulated once. Every chunk is taken to be as long as the longest chunk.
    Raises UsageError for other plans, and for values that contradict each other.
    """
    count = check_flows(operation, ranks_per_host)
    if len(fabric.hosts) != count:
        raise UsageError(f"{operation.plan} needs {count} hosts, not {len(fabric.hosts)}")
    for number, host in enumerate(fabric.hosts):
        if host.burst_bytes:
            raise UsageError(
                f"flows have no token bucket: burst_bytes of host {number} must be 0, not "
                f"{host.burst_bytes}"
            )
        if host.ahead_bytes:
            raise UsageError(
                f"flows have no queues of NICs: ahead_bytes of host {number} must be 0, not "
                f"{host.ahead_bytes}"
            )
    if fabric.shared_cores is not None:
        raise UsageError(f"hosts of flows share no cores: shared_cores is {fabric.shared_cores}")
    starts = (0,) * count if starts_ps is None else tuple(starts_ps)
    if len(starts) != count or min(starts) < 0:
        raise UsageError(f"starts_ps must have {count} times of at least 0, not {starts}")
    sizes = _Sizes(operation, fabric, count, ranks_per_host)
    times = {host: sizes.times(host) for host in set(fabric.hosts)}
    kinds = set(zip(starts, fabric.hosts, strict=True))
    ended: tuple[int, ...]
    if len(kinds) == 1:
        ((start, host),) = kinds
        ended = (start + _native.ring_flows_alike(times[host], count),) * count
    else:
        ended = tuple(_native.ring_flows([times[host] for host in fabric.hosts], starts))
    steps = 2 * (count - 1)
    return FlowRun(
        ended_ps=ended, sent_bytes=(steps * sizes.wire_bytes,) * count, flows=steps * count
    )


class _Sizes:
    """The bytes of the flows of an operation, and the times that they take on a host."""

    def __init__(self, operation: Operation, fabric: Fabric, hosts: int, ranks: int) -> None:
        self._fabric, self._hosts, self._ranks = fabric, hosts, ranks
        chunk = max(range(operation.plan.chunks), key=operation.chunk_counts.__getitem__)
        payloads = [
            operation.payload_bytes(count, partial=True)
            for count in operation.segment_counts(chunk)
        ]
        self._segments, self._chunk_bytes = len(payloads), sum(payloads)
        self._segment_bytes = max(payloads)
        framing = fabric.framing
        self._segment_wire_bytes = framing.wire_bytes(self._segment_bytes)
        self.wire_bytes = ranks * sum(map(framing.wire_bytes, payloads))
        """The bytes of a flow on a wire."""

    def times(self, host: Host) -> _Times:
        """Return the times that the parts of an all_reduce take on a host."""
        ranks, rate_bps, fastest_bps = self._ranks, sum(host.rates_bps), max(host.rates_bps)
        segment = self._segment_wire_bytes
        least = self._fabric.forwards_after_bytes
        stored = segment if least is None else min(least, segment)
        # Each segment is received, added or copied, and sent.
        add_ps = 2 * host.frame_ps + host.reducing_ps(self._segment_bytes)
        chunk_add_ps = 2 * host.frame_ps * self._segments + host.reducing_ps(self._chunk_bytes)
        chunk_copy_ps = 2 * host.frame_ps * self._segments
        spread_ps = self._memory_ps(host, (ranks - 1) * ranks * self._chunk_bytes)
        hop_ps = host.memory_latency_ps + 2 * host.frame_ps
        # Ranks send the first segments of all chunks, then the second ones, and so on.
        first_ps, within_ps = (
            (ranks - 1)
            * max(
                self._memory_ps(host, ranks * self._hosts * nbytes),
                self._on_cores_ps(host, self._hosts * work_ps),
                self._memory_ps(host, self._segment_bytes) + hop_ps - 2 * host.frame_ps + add_ps,
            )
            + ((hop_ps + host.reducing_ps(self._segment_bytes)) if ranks > 1 else 0)
            for nbytes, work_ps in (
                (self._segment_bytes, add_ps),
                (self._chunk_bytes, chunk_add_ps),
            )
        )
        if self._hosts == 1:
            within_ps += spread_ps + (ranks - 1) * hop_ps
        return (
            first_ps,
            within_ps,
            transmission_ps(self.wire_bytes, rate_bps),
            max(transmission_ps(ranks * segment, rate_bps), transmission_ps(segment, fastest_bps)),
            transmission_ps(stored, fastest_bps),
            host.latency_ps,
            add_ps,
            2 * host.frame_ps,
            self._on_cores_ps(host, chunk_add_ps),
            self._on_cores_ps(host, ranks * chunk_copy_ps),
            spread_ps,
            (ranks - 1) * hop_ps,
        )

    def _on_cores_ps(self, host: Host, work_ps: int) -> int:
        """Return the time that the host's cores need when each of its ranks has `work_ps` to do."""
        return -(-work_ps * self._ranks // min(self._ranks, host.cores))

    def _memory_ps(self, host: Host, nbytes: int) -> int:
        if host.memory_bytes_per_second is None:
            return 0
        return transmission_ps(nbytes, 8 * host.memory_bytes_per_second)
