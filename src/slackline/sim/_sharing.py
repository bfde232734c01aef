"""Transfers that share the memory, the cores and the NIC of a host.

    rate of a transfer = the smallest of
        its own rate: one copy engine, or one core that copies into a socket
        capacity / transfers, for each resource that it uses

The transfers of a resource have equal shares of it. A share that a transfer does not use, since its
own rate or another resource is slower, is not given to others.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from slackline.sim._events import Clock

__all__ = ["SharedRates"]

_PS_PER_S = 10**12


@dataclass(slots=True)
class _Transfer:
    """A transfer that runs."""

    left: Fraction
    """The bytes that are still to be moved."""
    own_rate: int | None
    """The bytes a second that the transfer moves alone; None where only resources limit it."""
    uses: tuple[Hashable, ...]
    then: Callable[[], None]
    rate: Fraction = Fraction(0)
    """Bytes a second, since the last change of the shares."""


class SharedRates:
    """The transfers that run at once; every start and every end changes the shares."""

    def __init__(self, events: Clock, capacities: Mapping[Hashable, int], weight: int = 1) -> None:
        """Begin without a transfer.

        `capacities` are the bytes a second of each resource; a resource without an entry has no
        limit. `weight`: the number of equal transfers for which each one stands, as on a host whose
        ranks do the same at the same time.
        """
        self._events, self._capacities, self._weight = events, capacities, weight
        self._running: dict[int, _Transfer] = {}
        self._users: dict[Hashable, int] = {}
        self._since_ps = 0
        self._made = 0
        self._change = 0

    def start(
        self, nbytes: int, own_rate: int | None, uses: Sequence[Hashable], then: Callable[[], None]
    ) -> None:
        """Move `nbytes` bytes from now on, and call `then` when the last of them has moved."""
        limited = tuple(each for each in uses if each in self._capacities)
        if nbytes == 0 or (own_rate is None and not limited):
            self._events.at(self._events.now_ps, then)
            return
        self._move()
        self._running[self._made] = _Transfer(Fraction(nbytes), own_rate, limited, then)
        self._made += 1
        for each in limited:
            self._users[each] = self._users.get(each, 0) + self._weight
        self._share()

    def _move(self) -> None:
        """Take the bytes off that have moved since the last change."""
        now_ps = self._events.now_ps
        for each in self._running.values():
            each.left -= each.rate * (now_ps - self._since_ps) / _PS_PER_S
        self._since_ps = now_ps

    def _share(self) -> None:
        """Compute all rates anew, and the moment of the next end."""
        self._change += 1
        if not self._running:
            return
        ends = []
        for each in self._running.values():
            rates = [Fraction(self._capacities[use], self._users[use]) for use in each.uses]
            if each.own_rate is not None:
                rates.append(Fraction(each.own_rate))
            each.rate = min(rates)
            ends.append(-(-each.left * _PS_PER_S // each.rate))
        at_ps = self._since_ps + max(0, int(min(ends)))
        self._events.at(at_ps, self._next_end, self._change)

    def _next_end(self, change: int) -> None:
        """End the transfers that have moved everything, unless the shares have changed since."""
        if change != self._change:
            return
        self._move()
        ended = [number for number, each in self._running.items() if each.left <= 0]
        gone = [self._running.pop(number) for number in ended]
        for each in gone:
            for use in each.uses:
                self._users[use] -= self._weight
        self._share()
        for each in gone:
            each.then()
