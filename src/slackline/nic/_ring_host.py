"""The host's side of a ring NIC: what is begun when, kept until it can be, and given up."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from slackline.nic._device import Answer, Key, Post
from slackline.wire import FIELDS

__all__ = ["RingHost", "RingNic"]

_TAG, _CHUNK = (
    next(slice(each.offset, each.offset + each.width) for each in FIELDS if each.name == name)
    for name in ("tag", "chunk")
)


class RingNic(Protocol):
    """What this room needs of a ring NIC; see slackline.circuit.RingDevice."""

    def receive(self, frame: bytes) -> None: ...
    def advance(self) -> None: ...
    def frames(self) -> list[bytes]: ...
    def completed(self) -> list[Key]: ...
    def close(self) -> None: ...


_Nic = TypeVar("_Nic", bound=RingNic)


class RingHost(Generic[_Nic]):
    """Gives a ring NIC as many operations at once as it has room for, the most urgent first.

    Room is shared out: of the operations that begin at one rank, at most `most // starts` are open
    here at once. So no two ranks wait for each other for ever. What begins at a rank goes round
    from there, and the first NIC on the way lets so many in. Each further one hears of an operation
    by a frame of the one before it, so it is asked for those that the first has open, and holds
    besides only such as the first has completed. The final values of these are under way, through
    NICs that have them open: they need nobody's room, and make theirs free. In a common room the
    NIC of rank 1 might be full of what began at rank 1, and that of rank 2 of what began at rank 2,
    and each would wait for a place at the other. That a rank limits what it begins itself would not
    do either: one without a NIC begins whatever is posted.
    """

    def __init__(
        self,
        open_nic: Callable[[], _Nic],
        post: Callable[[_Nic, Post], None],
        most: int,
        starts: int = 1,
    ) -> None:
        """`post` opens an operation at the NIC, which has room for `most`, of `starts` ranks."""
        self._open_nic, self._post, self._places = open_nic, post, most // starts
        self._nic = open_nic()
        self._open: dict[Key, int] = {}
        """With the rank that they began at."""
        self._taken = Counter[int]()
        """Places, by that rank."""
        self._stale = set[Key]()
        """Open, and given up: nothing more comes for them."""
        self._waiting = defaultdict[int, list[tuple[int, int, Post]]](list)
        self._early: dict[Key, list[bytes]] = {}
        """Frames of operations that wait."""
        self._count = 0

    def take(
        self, posts: list[Post], frames: list[tuple[int, bytes]], withdrawn: list[Key]
    ) -> Answer:
        """See Device."""
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
            else:
                self._nic.receive(frame)
        released = self._give_up(withdrawn)
        while True:
            self._nic.advance()
            sent += self._nic.frames()
            completed = self._nic.completed()
            for key in completed:
                self._taken[self._open.pop(key)] -= 1
                self._stale.discard(key)
            done += completed
            released += self._renew()
            if not self._begin():
                return sent, done, released

    def close(self) -> None:
        """See Device."""
        self._nic.close()

    def _begin(self) -> bool:
        """Whether any operation that waited was given to the NIC."""
        any_begun = False
        while ready := [
            (waiting[0], start)
            for start, waiting in self._waiting.items()
            if waiting and self._taken[start] < self._places
        ]:
            (_, _, post), start = min(ready)
            heapq.heappop(self._waiting[start])
            self._post(self._nic, post)
            key = post[:2]
            self._open[key] = start
            self._taken[start] += 1
            for frame in self._early.pop(key):
                self._nic.receive(frame)
            any_begun = True
        return any_begun

    def _give_up(self, withdrawn: Sequence[Key]) -> list[Key]:
        """Those of them that the NIC does not have."""
        gone = set(withdrawn)
        for waiting in self._waiting.values():
            waiting[:] = [each for each in waiting if each[2][:2] not in gone]
            heapq.heapify(waiting)
        for key in gone:
            self._early.pop(key, None)
        self._stale |= gone & self._open.keys()
        return sorted(gone - self._open.keys())

    def _renew(self) -> list[Key]:
        """Those given up that are forgotten now.

        A NIC cannot be told to forget an operation; a fresh one knows of none.
        """
        if not self._stale or self._stale != self._open.keys():
            return []
        self._nic.close()
        self._nic = self._open_nic()
        forgotten = sorted(self._stale)
        self._open.clear()
        self._taken.clear()
        self._stale.clear()
        return forgotten
