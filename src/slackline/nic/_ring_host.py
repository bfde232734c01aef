"""The host's side of a ring NIC: what is begun when, kept until it can be, and given up."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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


@dataclass(eq=False)
class _Opened(Generic[_Nic]):
    nic: _Nic
    live: dict[Key, int] = field(default_factory=dict)
    """What it has open, with the rank that it began at."""
    stale: set[Key] = field(default_factory=set)
    """What it has open besides and was given up: nothing more comes for it."""


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

    A NIC cannot be told to forget an operation. When one is given up, a fresh NIC takes all that
    begins from then on, and the old one is closed when the rest of what it has is done.
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
        self._newest: _Opened[_Nic] | None = _Opened(open_nic())
        """Takes what begins; None: to be opened."""
        self._nics = [self._newest]
        self._at: dict[Key, _Opened[_Nic]] = {}
        """Who has what is open and not given up."""
        self._taken = Counter[int]()
        """Places, by the rank at which operations begin."""
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

    def close(self) -> None:
        """See Device."""
        for opened in self._nics:
            opened.nic.close()

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
        completed = opened.nic.completed()
        for key in completed:
            if key in opened.live:
                self._taken[opened.live.pop(key)] -= 1
                del self._at[key]
            else:
                opened.stale.remove(key)
        return completed

    def _give_up(self, withdrawn: Sequence[Key]) -> list[Key]:
        """Those of them that no NIC has."""
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
        """What was given up and is forgotten now."""
        forgotten: list[Key] = []
        for opened in [each for each in self._nics if each is not self._newest and not each.live]:
            opened.nic.close()
            self._nics.remove(opened)
            forgotten += sorted(opened.stale)
        return forgotten
