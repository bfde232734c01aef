"""The host's scheduler of a ring NIC: starts, queues and withdraws operations.

A ring NIC is a circuit that adds its host's data to frames that pass from one rank to the next.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from slackline.nic.offload._device import Answer, Key, Post
from slackline.wire import FIELDS

__all__ = ["RingHost", "ScheduledNic"]

_TAG, _CHUNK = (
    next(slice(each.offset, each.offset + each.width) for each in FIELDS if each.name == name)
    for name in ("tag", "chunk")
)


class ScheduledNic(Protocol):
    """The methods of a ring NIC that RingHost calls; see slackline.circuit.RingDevice."""

    def receive(self, frame: bytes) -> None: ...
    def advance(self) -> None: ...
    def frames(self) -> list[bytes]: ...
    def completed(self) -> list[Key]: ...
    def counters(self) -> Mapping[str, int]: ...
    def close(self) -> None: ...


_Nic = TypeVar("_Nic", bound=ScheduledNic)


@dataclass(eq=False)
class _Opened(Generic[_Nic]):
    """A ring NIC with the operations that are open in it."""

    nic: _Nic
    live: dict[Key, int] = field(default_factory=dict)
    """The operations open in the NIC, each with its starting rank."""
    stale: set[Key] = field(default_factory=set)
    """The operations still open in the NIC that were withdrawn; they get no more frames."""


class RingHost(Generic[_Nic]):
    """A scheduler that opens as many operations in a ring NIC as fit, the most urgent first.

    The NIC's capacity is divided by starting rank: of the operations that start at one rank, at
    most `most // starts` are open in this NIC at once. The division prevents deadlock. Operations
    that start at rank r travel around the ring from r, and the first NIC of the ring after r opens
    no more than its limit. Every later NIC learns of an operation from a frame of its predecessor.
    A later NIC therefore holds only operations that the first NIC has open or has completed. The
    final values of a completed operation already travel through NICs that have the operation open;
    such an operation needs no further capacity and will free its own.

    Without the division, the NIC of rank 1 could be full of operations that start at rank 1, and
    the NIC of rank 2 full of operations that start at rank 2, and each would wait for capacity in
    the other. A limit on the operations that a rank starts itself would not help, because a rank
    without a NIC starts every operation that is posted.

    A NIC cannot drop an operation. When an operation is withdrawn, a new NIC takes all operations
    that start later, and the old NIC is closed once its remaining operations are complete.
    """

    def __init__(
        self,
        open_nic: Callable[[], _Nic],
        post: Callable[[_Nic, Post], None],
        most: int,
        starts: int = 1,
    ) -> None:
        """Open the first NIC; `post` opens an operation in a NIC.

        A NIC can hold `most` operations, which start at `starts` different ranks.
        """
        self._open_nic, self._post, self._places = open_nic, post, most // starts
        self._newest: _Opened[_Nic] | None = _Opened(open_nic())
        """The NIC that takes new operations; None if one must be opened first."""
        self._nics = [self._newest]
        self._at: dict[Key, _Opened[_Nic]] = {}
        """The NIC of each operation that is open and not withdrawn."""
        self._taken = Counter[int]()
        """The number of open operations by starting rank."""
        self._waiting = defaultdict[int, list[tuple[int, int, Post]]](list)
        self._early: dict[Key, list[bytes]] = {}
        """The frames that arrived for operations that still wait for capacity in a NIC."""
        self._count = 0
        self._closed_counts = Counter[str]()
        """The counters of the NICs that were closed."""

    def take(
        self, posts: list[Post], frames: list[tuple[int, bytes]], withdrawn: list[Key]
    ) -> Answer:
        """Process new operations and frames until no work is left; see Device.take."""
        for post in posts:
            tag, chunk, start, _, _, _, priority, _ = post
            self._count += 1
            heapq.heappush(self._waiting[start], (priority, self._count, post))
            self._early[tag, chunk] = []
        sent: list[bytes] = []
        done: list[Key] = []
        self._begin()
        for _, frame in frames:
            key = int.from_bytes(frame[_TAG], "little"), int.from_bytes(frame[_CHUNK], "little")
            if key in self._early:
                self._early[key].append(frame)
            elif key in self._at:
                self._at[key].nic.receive(frame)
        released = self._give_up(withdrawn)
        while True:
            for opened in self._nics:
                opened.nic.advance()
                sent += opened.nic.frames()
                done += self._completed(opened)
            released += self._retire()
            if not self._begin():
                return sent, done, released

    def counters(self) -> Mapping[str, int]:
        """Return the sums of the counters of all NICs, closed ones included."""
        counts = Counter(self._closed_counts)
        for opened in self._nics:
            counts.update(opened.nic.counters())
        return counts

    def close(self) -> None:
        """Close all NICs."""
        for opened in self._nics:
            opened.nic.close()

    def _begin(self) -> bool:
        """Open waiting operations while the NIC has capacity; return whether any was opened."""
        any_begun = False
        while ready := [
            (waiting[0], start)
            for start, waiting in self._waiting.items()
            if waiting and self._taken[start] < self._places
        ]:
            (_, _, post), start = min(ready)
            heapq.heappop(self._waiting[start])
            if self._newest is None:
                self._newest = _Opened(self._open_nic())
                self._nics.append(self._newest)
            self._post(self._newest.nic, post)
            key = post[:2]
            self._newest.live[key] = start
            self._at[key] = self._newest
            self._taken[start] += 1
            for frame in self._early.pop(key):
                self._newest.nic.receive(frame)
            any_begun = True
        return any_begun

    def _completed(self, opened: _Opened[_Nic]) -> list[Key]:
        """Return a NIC's completed operations and free their capacity."""
        completed = opened.nic.completed()
        for key in completed:
            if key in opened.live:
                self._taken[opened.live.pop(key)] -= 1
                del self._at[key]
            else:
                opened.stale.remove(key)
        return completed

    def _give_up(self, withdrawn: Sequence[Key]) -> list[Key]:
        """Withdraw operations; return the operations open in no NIC, whose memory is free now."""
        gone = set(withdrawn)
        for waiting in self._waiting.values():
            waiting[:] = [each for each in waiting if each[2][:2] not in gone]
            heapq.heapify(waiting)
        unknown = []
        for key in sorted(gone):
            self._early.pop(key, None)
            if (opened := self._at.pop(key, None)) is None:
                unknown.append(key)
                continue
            self._taken[opened.live.pop(key)] -= 1
            opened.stale.add(key)
            if opened is self._newest:
                self._newest = None
        return unknown

    def _retire(self) -> list[Key]:
        """Close old NICs without live operations; return the keys of their withdrawn operations."""
        forgotten: list[Key] = []
        for opened in [each for each in self._nics if each is not self._newest and not each.live]:
            self._closed_counts.update(opened.nic.counters())
            opened.nic.close()
            self._nics.remove(opened)
            forgotten += sorted(opened.stale)
        return forgotten
