"""The machine under simulated plans: one clock, the wires, and the threads of every member."""

from collections.abc import Callable, Sequence

from slackline.errors import LinkError, PeerError, TimeoutError, UsageError
from slackline.faults import Plan
from slackline.sim._conditions import Conditions
from slackline.sim._events import EventQueue
from slackline.sim._fabric import Fabric
from slackline.sim._processor import Processor, Thread
from slackline.sim._wires import Wires
from slackline.units import format_duration_ns

__all__ = ["LIMIT_PS", "Machine"]

LIMIT_PS = 3600 * 10**12
"""An hour: the simulated time after which a simulation gives up."""


class Machine:
    """Members of a job on the hosts of a fabric; plans are executed by other objects on it."""

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
        ranks and NICs that do not exist.
        """
        for member, host in enumerate(placement):
            if not 0 <= host < len(fabric.hosts):
                raise UsageError(
                    f"rank {member} cannot be on host {host}: there are {len(fabric.hosts)}"
                )
        self.fabric, self.placement = fabric, tuple(placement)
        self.events = EventQueue()
        self.conditions = Conditions(self.events, fabric, faults or Plan(), len(placement))
        self.wires = Wires(self.events, fabric, self.conditions)
        processors = [Processor(self.events, host.cores) for host in fabric.hosts]
        self.engines = tuple(Thread(processors[host]) for host in placement)
        """The thread of each member that moves and reduces bytes."""
        self.workers = tuple(Thread(processors[host]) for host in placement)
        """The thread of each member that computes."""
        self._limit_ps = limit_ps
        if faults is not None and faults.of_ranks:
            self.conditions.changed.append(self._change_ranks)
        if faults:
            self.conditions.start()

    def run(self, finished: Callable[[], bool], settle: Callable[[], None] | None = None) -> None:
        """Run events until `finished`; call `settle` after all events of each time.

        Raises PeerError or LinkError where a rank that is dead or stands still, or hosts between
        which every path is down, keep the rest from ending; TimeoutError at the limit of simulated
        time; and UsageError where nothing can happen any more for another reason.
        """

        def over() -> bool:
            return finished() or self.events.now_ps > self._limit_ps

        self.events.run(settle, over)
        if finished():
            return
        now = format_duration_ns(self.events.now_ps // 1000)
        for rank in range(len(self.placement)):
            if self.conditions.slowness(rank)[1]:
                how = "is dead" if self.conditions.dead(rank) else "stands still"
                raise PeerError(f"rank {rank} {how} after {now} and others wait for it", peer=rank)
        for source, target, _ in self.wires.waiting():
            paths = ((source, target, nic) for nic in range(self.fabric.nics))
            if all(map(self.conditions.down, paths)):
                raise LinkError(
                    f"host {source} cannot reach host {target}: all paths are down after {now}"
                )
        if self.events.now_ps > self._limit_ps:
            limit = format_duration_ns(self._limit_ps // 1000)
            raise TimeoutError(f"the simulation was not over after {limit} of simulated time")
        raise UsageError(
            f"nothing happens after {now} and something still waits: is the plan valid?"
        )

    def _change_ranks(self) -> None:
        for rank, threads in enumerate(zip(self.engines, self.workers, strict=True)):
            slowness, stopped = self.conditions.slowness(rank)
            for thread in threads:
                thread.condition(slowness, stopped=stopped)
