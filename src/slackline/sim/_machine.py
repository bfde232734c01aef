"""The machine under simulated plans: one clock, the wires, and the threads of every member.

The native core moves frames and runs threads; it calls back at the times that were asked for, and
asks for the effects of faults.
"""

from collections.abc import Callable, Sequence
from typing import Any

import slackline._native as _native
from slackline.errors import LinkError, PeerError, TimeoutError, UsageError
from slackline.faults import Plan
from slackline.sim._conditions import Conditions
from slackline.sim._fabric import Fabric, Host
from slackline.units import format_duration_ns

__all__ = ["LIMIT_PS", "Machine"]

LIMIT_PS = 3600 * 10**12
"""An hour: the simulated time after which a simulation gives up."""

_END_PS = 1 << 62
"""The end of all simulated time, 53 days."""
_MOST = 1 << 60
"""The largest rate, size or time of a fabric."""


class Machine:
    """The members of a job on the hosts of a fabric; an Execution runs a plan on a machine."""

    def __init__(
        self,
        fabric: Fabric,
        placement: Sequence[int],
        faults: Plan | None = None,
        *,
        limit_ps: int = LIMIT_PS,
    ) -> None:
        """Place member i, a rank or a helper, on host `placement[i]`.

        `limit_ps`: the simulated time after which `run` gives up. Raises UsageError for hosts,
        ranks and NICs that do not exist, and for values that are too large to simulate.
        """
        for member, host in enumerate(placement):
            if not 0 <= host < len(fabric.hosts):
                raise UsageError(
                    f"rank {member} cannot be on host {host} of {len(fabric.hosts)} hosts"
                )
        if not 0 <= limit_ps < _END_PS:
            raise UsageError(f"limit_ps must be 0 to {_END_PS - 1}, not {limit_ps}")
        self.fabric, self.placement = fabric, tuple(placement)
        self._limit_ps = limit_ps
        self._tokens = 0
        self._calls: dict[int, tuple[Callable[..., None], tuple[Any, ...]]] = {}
        self._ends: dict[int, Callable[[int], None]] = {}
        self._finished: Callable[[], bool] = bool
        self._settle: Callable[[], None] | None = None
        faults = faults or Plan()
        hosts = {host: _values(host) for host in set(fabric.hosts)}
        framing = fabric.framing
        _check(framing, "header_bytes", "packet_bytes", "packet_overhead_bytes")
        _check(fabric, "forwards_after_bytes", "resend_ps", "shared_cores")
        self.core = _native.SimulatedMachine(
            [hosts[host] for host in fabric.hosts],
            (framing.header_bytes, framing.packet_bytes or 0, framing.packet_overhead_bytes),
            fabric.forwards_after_bytes,
            fabric.resend_ps,
            min(fabric.shared_cores or 0, 2**31),
            self.placement,
            bool(faults.of_network),
            self._deliver,
            self._end_of_time,
            self._path,
            self._draw,
        )
        """The native machine."""
        self.conditions = Conditions(self, fabric, faults, len(self.placement))
        self._limited: set[tuple[int, int]] = set()
        self.conditions.changed.append(self._change_network)
        if faults.of_ranks:
            self.conditions.changed.append(self._change_ranks)
        if faults:
            self.conditions.start()

    @property
    def now_ps(self) -> int:
        """The time of the event that runs, in picoseconds."""
        return self.core.now_ps

    def at(self, time_ps: int, event: Callable[..., None], *arguments: Any) -> None:
        """Schedule `event(*arguments)` for a time; raise UsageError where the time has passed.

        Events of equal time run in the order of the calls.
        """
        if time_ps < self.now_ps:
            raise UsageError(f"an event must be at {self.now_ps} ps or later, not {time_ps} ps")
        self.core.at(min(time_ps, _END_PS), self._call(event, arguments))

    def compute(
        self, member: int, work_ps: int, event: Callable[..., None], *arguments: Any
    ) -> None:
        """Let a member's computing thread work for `work_ps`, then call `event(*arguments)`.

        Tasks of a member run in the order of the calls. A task with `work_ps` 0 runs at once if the
        thread is idle.
        """
        self.core.compute(member, min(work_ps, _END_PS), self._call(event, arguments))

    def expect_ends(self, ended: Callable[[int], None]) -> int:
        """Return a number for an execution; `ended(member)` is called for each member that ends."""
        token = self._token()
        self._ends[token] = ended
        return token

    def forget_ends(self, token: int) -> None:
        """Forget the number `token` of an execution that is finished."""
        del self._ends[token]

    def run(self, finished: Callable[[], bool], settle: Callable[[], None] | None = None) -> None:
        """Run events until `finished`; call `settle` after all events of each time.

        The result of `finished` may change only in functions that the machine calls. Raises
        PeerError where a dead or stopped rank keeps the others from ending, and LinkError where
        hosts without a working path between them do. Raises TimeoutError at the limit of simulated
        time, and UsageError where no event is left for another reason.
        """
        self._finished, self._settle = finished, settle
        try:
            if not finished():
                self.core.run(self._limit_ps)
        finally:
            self._calls.clear()
        if finished() and self.now_ps < _END_PS:
            return
        now = format_duration_ns(self.now_ps // 1000)
        for rank in range(len(self.placement)):
            if self.conditions.slowness(rank)[1]:
                how = "is dead" if self.conditions.dead(rank) else "stands still"
                raise PeerError(f"rank {rank} {how} after {now} and others wait for it", peer=rank)
        for source, target in self.core.waiting():
            paths = ((source, target, nic) for nic in range(self.fabric.nics))
            if all(map(self.conditions.down, paths)):
                raise LinkError(
                    f"host {source} cannot reach host {target}: all paths are down after {now}"
                )
        if self.now_ps > self._limit_ps:
            limit = format_duration_ns(self._limit_ps // 1000)
            raise TimeoutError(f"the simulation was not over after {limit} of simulated time")
        raise UsageError(
            f"nothing happens after {now} and something still waits: is the plan valid?"
        )

    def _token(self) -> int:
        self._tokens += 1
        return self._tokens

    def _call(self, event: Callable[..., None], arguments: tuple[Any, ...]) -> int:
        token = self._token()
        self._calls[token] = event, arguments
        return token

    def _deliver(self, token: int, member: int) -> None:
        ended = self._ends.get(token)
        if ended is not None:
            ended(member)
            return
        event, arguments = self._calls.pop(token)
        event(*arguments)

    def _end_of_time(self) -> None:
        if self._settle is not None:
            self._settle()
        if self._finished():
            self.core.stop()

    def _path(self, source: int, target: int, nic: int) -> tuple[bool, bool, int]:
        return self.conditions.state((source, target, nic))

    def _draw(
        self, source: int, target: int, nic: int, packets: int
    ) -> tuple[int, int, int, int, int]:
        lot = self.conditions.draw((source, target, nic), packets)
        return lot.lost, lot.doubled, lot.late_ps, lot.overtaken_ps, lot.rate_bps or 0

    def _change_network(self) -> None:
        limited = self.conditions.limited_ports()
        for host, nic in sorted(limited | self._limited):
            self.core.set_rate(host, nic, self.conditions.rate_bps(host, nic))
        self._limited = limited
        self.core.change()

    def _change_ranks(self) -> None:
        for rank in range(len(self.placement)):
            slowness, stopped = self.conditions.slowness(rank)
            self.core.condition(rank, slowness.numerator, slowness.denominator, stopped)


def _values(host: Host) -> tuple[list[int], int, int, int, int, int, int, int, int]:
    """Return a host's parameters for the native machine, with 0 for rates without a limit."""
    for rate_bps in host.rates_bps:
        if rate_bps > _MOST:
            raise UsageError(f"the rate of a NIC must be at most {_MOST}, not {rate_bps}")
    _check(host, "latency_ps", "frame_ps", "memory_latency_ps")
    _check(host, "cores", "reduce_bytes_per_second", "memory_bytes_per_second")
    _check(host, "burst_bytes", "ahead_bytes")
    return (
        list(host.rates_bps),
        host.latency_ps,
        min(host.cores, 2**31),
        host.frame_ps,
        host.reduce_bytes_per_second or 0,
        host.memory_bytes_per_second or 0,
        host.memory_latency_ps,
        host.burst_bytes,
        host.ahead_bytes,
    )


def _check(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if value is not None and value > _MOST:
            raise UsageError(f"{name} must be at most {_MOST}, not {value}")
