"""Messages of a pipeline that helper processes carry, in place of the ranks' devices.

    rank i        | F |copy|  F  |copy|          device to host, in a queue of the rank
    a delegate            | delay | send |       one message at a time
    network                              | latency |
    rank i + 1                                     |copy| F |    host to device, before the F

Copies and sends of the ranks of a host share the host's memory, the cores that send and receive,
and the host's NIC.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial

from slackline.errors import UsageError
from slackline.sim._events import Clock
from slackline.sim._sharing import SharedRates

__all__ = ["Delegation", "Delegates"]

Then = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegation:
    """The parts of a message's way through the hosts' memory; None stands for no limit."""

    delegates: int = 1
    """The helper processes of each link in each direction; messages go to them in turns."""
    copy_bytes_per_second: int | None = None
    """The rate of a copy between a device and its host's memory."""
    copy_ps: int = 0
    """The further time of each copy: its launch, and the signal that the data is there."""
    send_bytes_per_second: int | None = None
    """The rate at which one delegate sends, and one core receives."""
    handling_ps: int = 0
    """The further time for which a message occupies its delegate."""
    holds_delay: bool = False
    """Whether the delay of a slow link occupies the delegate, as a sleep before the send does."""
    hosts: tuple[int, ...] = ()
    """The host of each rank; empty where each rank has a host of its own."""
    ranks_alike: int = 1
    """The ranks for which each simulated rank stands, on the same host, which all send at once."""
    memory_bytes_per_second: int | None = None
    """The rate of a host's memory, of all ranks together, for bytes copied or sent."""
    nic_bytes_per_second: int | None = None
    """The rate of a host's NIC in each direction."""
    cores: int | None = None
    """The cores of a host that send and receive."""

    def __post_init__(self) -> None:
        for name in ("delegates", "ranks_alike"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be a positive integer, not {getattr(self, name)}")
        for name in ("copy_ps", "handling_ps"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must be at least 0, not {getattr(self, name)}")
        for name in (
            "copy_bytes_per_second",
            "send_bytes_per_second",
            "memory_bytes_per_second",
            "nic_bytes_per_second",
            "cores",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be a positive integer, not {value}")


class _Queue:
    """A server of one task at a time; each task says when it has ended."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[Then], None]] = []
        self._busy = False

    def add(self, task: Callable[[Then], None]) -> None:
        """Begin a task, `task(ended)`, when those before it have called their `ended`."""
        self._waiting.append(task)
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = bool(self._waiting)
        if self._busy:
            self._waiting.pop(0)(self._next)


class Delegates:
    """The delegates and the copies of a pipeline while a simulation runs."""

    def __init__(self, events: Clock, delegation: Delegation, ranks: int) -> None:
        """Begin without a message; raise UsageError where `hosts` does not fit `ranks`."""
        self._events, self._given = events, delegation
        self._hosts = delegation.hosts or tuple(range(ranks))
        if len(self._hosts) != ranks:
            raise UsageError(f"hosts must have {ranks} hosts, not {len(self._hosts)}")
        capacities: dict[Hashable, int] = {}
        for host in set(self._hosts):
            if delegation.memory_bytes_per_second is not None:
                capacities["memory", host] = delegation.memory_bytes_per_second
            if delegation.nic_bytes_per_second is not None:
                capacities["sent", host] = delegation.nic_bytes_per_second
                capacities["received", host] = delegation.nic_bytes_per_second
            if delegation.cores is not None and delegation.send_bytes_per_second is not None:
                capacities["cores", host] = delegation.cores * delegation.send_bytes_per_second
        self._rates = SharedRates(events, capacities, delegation.ranks_alike)
        self._copies = [_Queue() for _ in range(ranks)]
        self._delegates: dict[tuple[int, int], list[_Queue]] = {}
        self._sent: dict[tuple[int, int], int] = {}

    def send(
        self,
        rank: int,
        to: int,
        nbytes: int,
        delay_ps: Callable[[], int],
        then: Then,
    ) -> None:
        """Carry a message and call `then` when it is in the memory of the receiver's host.

        `delay_ps` returns the delay of the link at the time of the call.
        """
        self.copy(rank, nbytes, partial(self._delegate, rank, to, nbytes, delay_ps, then))

    def copy(self, rank: int, nbytes: int, then: Then) -> None:
        """Copy between the rank's device and its host, after the copies before it."""

        def begin(ended: Then) -> None:
            def last() -> None:
                ended()
                then()

            def copied() -> None:
                self._events.at(self._events.now_ps + self._given.copy_ps, last)

            memory = ("memory", self._hosts[rank])
            self._rates.start(nbytes, self._given.copy_bytes_per_second, (memory,), copied)

        self._copies[rank].add(begin)

    def _delegate(
        self,
        rank: int,
        to: int,
        nbytes: int,
        delay_ps: Callable[[], int],
        then: Then,
    ) -> None:
        given, events = self._given, self._events
        here, there = self._hosts[rank], self._hosts[to]
        uses = [("memory", here), ("cores", here), ("memory", there), ("cores", there)]
        if here != there:
            uses += [("sent", here), ("received", there)]

        def begin(ended: Then) -> None:
            held_ps = given.handling_ps + (delay_ps() if given.holds_delay else 0)
            events.at(events.now_ps + held_ps, send, ended)

        def send(ended: Then) -> None:
            self._rates.start(nbytes, given.send_bytes_per_second, uses, partial(sent, ended))

        def sent(ended: Then) -> None:
            ended()
            events.at(events.now_ps + (0 if given.holds_delay else delay_ps()), then)

        way = rank, to
        if way not in self._delegates:
            self._delegates[way] = [_Queue() for _ in range(given.delegates)]
            self._sent[way] = 0
        number = self._sent[way] % given.delegates
        self._sent[way] += 1
        self._delegates[way][number].add(begin)
