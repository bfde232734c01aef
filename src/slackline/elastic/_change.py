"""A change of a group's members, by which ranks leave, join, split and merge.

Every new member makes the call with the same list of handles, and

1. connects to the door of the first handle;
2. opens the new group, beside the old one, on the links that exist; with its addresses it publishes
   its list, and the proof that its handle is its own;
3. says that it is ready; the first word in the store decides for all: done, or given up.
4. If it was given up, closes the new group. If it is done, the caller closes the old group.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

from torch._C._distributed_c10d import PrefixStore

from slackline.backend import Membership, create
from slackline.elastic._handle import Door, Handle, open_door
from slackline.elastic._meeting import Meeting
from slackline.errors import MismatchError, PeerError, SlacklineError, UsageError
from slackline.nic import Group, Introduction, NicOptions, clean_up
from slackline.nic.connect import OpeningStore

__all__ = ["changing"]

_DONE = "done"
_used: set[str] = set()
_one_at_a_time = threading.Lock()


@contextmanager
def changing(
    number: str,
    handles: Sequence[str],
    *,
    timeout: timedelta,
    limit: timedelta,
    options: NicOptions | None = None,
) -> Iterator[tuple[Group, Membership]]:
    """Open a group of the processes that `handles` name, and provide it with its membership.

    The arguments and the errors are those of `slackline.elastic.reconfigure`; `limit` is the time
    limit of the group's operations, and `options` are for the engine if the group is its first.
    Until the end of the context, no other change can begin in this process.
    """
    deadline_s = time.monotonic() + timeout.total_seconds()
    if timeout <= timedelta():
        raise UsageError(f"timeout must be positive, not {timeout}")
    if not _one_at_a_time.acquire(blocking=False):
        raise UsageError(f"the change {number!r} begins while another one goes on in this process")
    try:
        door = open_door()
        listed, rank = _read(handles, door)
        _use(number)
        with Meeting(listed, rank, door, deadline_s) as meeting:
            opened = _Change(number, listed, rank, door, meeting).run(limit, options)
            store = PrefixStore(f"slackline/change/{number}/torch", meeting.group_store)
            store.set_timeout(limit)
        yield (
            opened,
            Membership(
                store=store,
                generation=0,
                me=rank,
                members=tuple(range(len(listed))),
                lost=opened.lost,
            ),
        )
    finally:
        _one_at_a_time.release()


def _read(handles: Sequence[str], door: Door) -> tuple[tuple[Handle, ...], int]:
    """Return the handles of a list, and the place of this process."""
    listed = door.read(handles)
    names = [handle.name for handle in listed]
    for place, handle in enumerate(listed):
        if names.index(handle.name) != place:
            raise UsageError(
                f"the handle of process {handle.name} is in the list twice, at {place} and "
                f"{names.index(handle.name)}"
            )
        if handle.job != door.handle.job:
            raise UsageError(
                f"the handle of process {handle.name}, at {place} in the list, is of another job: "
                "its SLACKLINE_KEY differs"
            )
    if door.handle.name not in names:
        raise UsageError(
            f"the list of {len(listed)} handles lacks the handle of this process, "
            f"{door.handle.name}; a process that leaves makes no call"
        )
    return listed, names.index(door.handle.name)


def _use(number: str) -> None:
    if not number:
        raise UsageError("the number of a change must not be empty")
    if number in _used:
        raise UsageError(f"the number {number!r} was already used by an earlier change")
    _used.add(number)


class _Change:
    """The part of this process, the new `rank`, in one change of members."""

    def __init__(
        self, number: str, handles: tuple[Handle, ...], rank: int, door: Door, meeting: Meeting
    ) -> None:
        self._prefix = f"slackline/change/{number}"
        self._number, self._handles, self._rank, self._door = number, handles, rank, door
        self._meeting = meeting

    def run(self, limit: timedelta, options: NicOptions | None) -> Group:
        """Return the new group, once all have decided to go on with it.

        `limit` is of its operations, `options` are of an engine that it opens. Raises an error if
        the change is given up; then there is no new group.
        """
        store = _Prefixed(self._meeting, self._prefix)
        names = [handle.name for handle in self._handles]
        if self._rank == 0:
            self._door.leads(names, self._meeting.keys)
        opening = OpeningStore(
            store,
            self._rank,
            len(self._handles),
            limit_s=self._meeting.deadline_s - time.monotonic(),
        )
        opened: Group | None = None
        try:
            with opening.telling():
                opened = create.open_beside(
                    store,
                    self._rank,
                    len(self._handles),
                    timeout=limit,
                    opening=timedelta(seconds=opening.left_s),
                    introduction=self._introduction(names),
                    options=options,
                )
                opening.set(f"ready/{self._rank}", "")
                ready = {rank: f"ready/{rank}" for rank in range(len(self._handles))}
                if self._rank == 0:  # While the others get ready, there is time to tidy up.
                    self._meeting.delete(self._door.ended_by(names))
                opening.wait_all(ready, "the end of the change of members")
                decided = store.compare_set("decision", "", _DONE).decode()
        except BaseException as error:
            if not self._gave_up(store, error) and isinstance(error, SlacklineError):
                assert opened is not None  # Others go on only after this rank was ready.
                return opened
            if opened is not None:
                clean_up(error, partial(create.drop, opened))
            raise
        if decided == _DONE:
            return opened
        given_up = PeerError(f"the change {self._number!r} was given up: {decided}")
        clean_up(given_up, partial(create.drop, opened))
        raise given_up

    def _introduction(self, names: list[str]) -> Introduction:
        """Return what this rank says to the other members, and how it checks what they say.

        Each says which list it has, whose `names` it knows, and shows its secret.
        """
        digest = hashlib.sha256(json.dumps(names).encode()).hexdigest()

        def check(rank: int, said: str) -> None:
            other = json.loads(said)
            if other["list"] != digest:
                raise MismatchError(
                    f"rank {rank} calls the change {self._number!r} with another list of handles",
                    rank=self._rank,
                    peer=rank,
                )
            if not self._handles[rank].proven_by(other["secret"]):
                raise PeerError(
                    f"the process that came as rank {rank} is not the process of its handle, "
                    f"{self._handles[rank].name}",
                    rank=self._rank,
                    peer=rank,
                )

        return Introduction(
            opening=f"{self._number} {digest}",
            said=json.dumps({"list": digest, "secret": self._door.secret}),
            check=check,
        )

    def _gave_up(self, store: _Prefixed, error: BaseException) -> bool:
        """Give the change up after `error`; return False if the others go on with it."""
        reason = f"rank {self._rank}: {error}" if str(error) else f"rank {self._rank} gave up"
        try:
            return store.compare_set("decision", "", reason[:500]).decode() != _DONE
        except SlacklineError as silent:
            # Without the store the others cannot be asked. They cannot have this rank's group
            # either once it is closed, so that its end tells them.
            error.add_note(f"the decision of the others is not known: {silent}")
            return True


class _Prefixed:
    """A meeting's store with a prefix before each key."""

    def __init__(self, meeting: Meeting, prefix: str) -> None:
        self._meeting, self._prefix = meeting, prefix

    def set(self, key: str, value: str, /) -> None:
        self._meeting.set(f"{self._prefix}/{key}", value)

    def get(self, key: str, /) -> bytes:
        return self._meeting.get(f"{self._prefix}/{key}")

    def get_together(self, keys: list[str], /) -> list[bytes]:
        return self._meeting.get_together([f"{self._prefix}/{key}" for key in keys])

    def check(self, keys: list[str], /) -> bool:
        return self._meeting.check([f"{self._prefix}/{key}" for key in keys])

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        return self._meeting.compare_set(f"{self._prefix}/{key}", expected, desired)
