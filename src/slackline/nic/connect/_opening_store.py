"""The store during one opening of a group: waits end with the opening, failures are told.

    rank 0                                     rank 1
    sets its values, waits for rank 1's        cannot open the group: too many open files
                                         <──   sets the reason
    raises PeerError with that reason          raises UsageError with that reason

torch's stores block in `get` for a timeout of their own, and hold a lock meanwhile that keeps other
threads from the store. Every wait here therefore asks whether a key exists, again and again: a wait
ends at the group's deadline, and openings of several groups do not wait for each other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from slackline.errors import ClosedError, LinkError, PeerError, SlacklineError, TimeoutError
from slackline.nic._interface import BatchStore, Store
from slackline.units import show_time

__all__ = [
    "OpeningStore",
    "absent_keys",
    "answering",
    "ranks_text",
    "tell_failure",
    "wait_until",
]

_MOST_NAMED = 12
"""The most ranks that a message names."""

_FAILURE = "slackline/failed"
_SHORTEST_PAUSE_S = 200e-6
_LONGEST_PAUSE_S = 0.02
_PAUSE_FOR_A_RANK_S = 0.0002
"""The part of the longest pause for each rank: the store answers all ranks of a group."""
_GLANCE_S = 0.1
"""The pause between two looks for a failure of another rank."""
_SAME_END_S = 1.0
"""The most by which the deadlines of ranks differ that began to open the group together."""
_MOST_ASKED = 64
"""The largest group in which every rank asks for each missing rank when the time is up."""
_MOST_LETTERS = 500


class OpeningStore:
    """The store of one opening of a group, for `rank` of `size` ranks, until a deadline.

    Every method raises LinkError if the store does not answer.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        limit_s: float,
        closed: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create the view of one rank on `store`, whose waits end after `limit_s` seconds.

        `closed` returns whether the engine has been closed, which ends every wait with ClosedError.
        """
        self._store, self.rank, self.size = store, rank, size
        self._batch = store if isinstance(store, BatchStore) else None
        self.reads_together = self._batch is not None
        """Whether the store returns several values for the price of one."""
        self._limit_s, self.deadline_s = limit_s, time.monotonic() + limit_s
        self._closed = closed
        self._glance_at_s = time.monotonic() + _GLANCE_S
        self._heard: PeerError | TimeoutError | None = None

    @property
    def left_s(self) -> float:
        """The seconds that are left until the deadline, at least 0."""
        return max(0.0, self.deadline_s - time.monotonic())

    def set(self, key: str, value: str) -> None:
        """Publish `value` under `key`."""
        with answering(self.rank):
            self._store.set(key, value)

    def get(
        self, key: str, *, of: int, step: str, needs: Mapping[int, str] = MappingProxyType({})
    ) -> bytes:
        """Return the value that the rank `of` sets; see `wait_all`.

        `needs` are keys that the rank `of` waits for before, by the rank that sets each.
        """
        return self.get_all({of: key}, step, needs)[0]

    def get_all(
        self,
        keys: Mapping[int, str],
        step: str,
        needs: Mapping[int, str] = MappingProxyType({}),
    ) -> list[bytes]:
        """Return the values under `keys` once all are set; see `wait_all`."""
        self.wait_all(keys, step, needs)
        names = list(keys.values())
        with answering(self.rank):
            if self._batch is not None:
                return self._batch.get_together(names)
            return [self._store.get(name) for name in names]

    def wait_all(
        self,
        keys: Mapping[int, str],
        step: str,
        needs: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """Block until all of `keys`, which have the rank that sets each, are set.

        Raises TimeoutError at the deadline, with `step` and the ranks that have not come, and
        PeerError soon after another rank has told that it cannot open the group.
        """
        names = list(keys.values())
        with answering(self.rank):
            if wait_until(
                lambda: self._store.check(names), self.deadline_s, self.size, self.glance
            ):
                return
            late = self._absent(needs) or self._absent(keys) or list(keys)
        raise TimeoutError(
            f"the rendezvous Timed out after {show_time(1e9 * self._limit_s)}, at {step}: rank "
            f"{self.rank} "
            f"waits for {ranks_text(late)}",
            rank=self.rank,
            peer=late[0],
        )

    def glance(self) -> None:
        """Raise PeerError if another rank has failed, ClosedError if the engine was closed.

        If the time of the other rank was up, raises TimeoutError. A call soon after an earlier one
        does nothing.
        """
        if self._closed():
            raise ClosedError("the nic was closed meanwhile", rank=self.rank)
        if (now_s := time.monotonic()) < self._glance_at_s:
            return
        self._glance_at_s = now_s + _GLANCE_S
        heard = self._failure()
        if isinstance(heard, TimeoutError) and self.left_s < _SAME_END_S:
            return  # This rank's own error, which is due too, says which ranks it waits for.
        if heard is not None:
            raise heard

    def _absent(self, keys: Mapping[int, str]) -> list[int]:
        absent = absent_keys(self._store, list(keys.values()))
        return [rank for rank, name in keys.items() if name in absent]

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Tell the other ranks of an error that leaves the body of the `with` statement.

        If the error only follows from the failure of another rank, which has told the reason,
        raises PeerError with that reason in place of the error.
        """
        try:
            yield
        except (PeerError, LinkError, TimeoutError) as error:
            if error is self._heard:
                raise
            heard = self._failure_after(error)
            both_late = isinstance(error, TimeoutError) and isinstance(heard, TimeoutError)
            if heard is not None and not both_late:
                raise heard from error
            self._tell(error)
            raise
        except BaseException as error:
            self._tell(error)
            raise

    def _failure_after(self, error: BaseException) -> PeerError | TimeoutError | None:
        """Return the failure that another rank has told, if the store still answers."""
        try:
            return self._failure()
        except LinkError as silent:
            error.add_note(f"the other ranks' reasons are not known: {silent}")
            return None

    def _failure(self) -> PeerError | TimeoutError | None:
        with answering(self.rank):
            if self.size == 1 or not self._store.check([_FAILURE]):
                return None
            stored = self._store.get(_FAILURE)
        try:
            told = json.loads(stored)
            peer, late, reason = int(told["rank"]), bool(told["late"]), str(told["reason"])
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise LinkError(
                f"the failure in the rendezvous store is wrong: {stored!r}", rank=self.rank
            ) from error
        if peer == self.rank:
            return None
        kind = TimeoutError if late else PeerError
        text = f"rank {peer} could not open the group: {reason}"
        self._heard = kind(text, rank=self.rank, peer=peer)
        return self._heard

    def _tell(self, error: BaseException) -> None:
        if self.size > 1:
            tell_failure(self._store, self.rank, error)


def tell_failure(store: Store, rank: int, error: BaseException) -> None:
    """Tell all ranks that wait on `store` that `rank` cannot open the group because of `error`.

    If the store does not answer either, a note of `error` says so.
    """
    reason = str(error)[:_MOST_LETTERS] or type(error).__name__
    told = {"rank": rank, "late": isinstance(error, TimeoutError), "reason": reason}
    try:
        store.set(_FAILURE, json.dumps(told))
    except (RuntimeError, OSError) as silent:
        error.add_note(f"the other ranks could not be told: {silent}")


def wait_until(
    ready: Callable[[], bool],
    deadline_s: float,
    size: int,
    glance: Callable[[], None] = lambda: None,
) -> bool:
    """Block until `ready` returns True; return False if it has not at the deadline.

    `ready` asks a store that serves `size` ranks. `deadline_s` is a time of time.monotonic().
    `glance` is called again and again meanwhile, and may raise.
    """
    begin_s = time.monotonic()
    longest_s = max(_LONGEST_PAUSE_S, size * _PAUSE_FOR_A_RANK_S)
    while not ready():
        try:
            glance()
        except PeerError:
            # The other rank may have set what this rank waits for, and then failed, since `ready`.
            # This rank then sees the reason itself, and tells its own side of it.
            if ready():
                return True
            raise
        now_s = time.monotonic()
        if now_s >= deadline_s:
            return False
        # The pause follows the wait so far, so that a wait lasts at most an eighth too long.
        pause_s = min(max(_SHORTEST_PAUSE_S, (now_s - begin_s) / 8), longest_s)
        time.sleep(min(pause_s, deadline_s - now_s))
    return True


def absent_keys(store: Store, keys: list[str]) -> list[str]:
    """Return those of `keys` that are not in the store; of more than 64 keys the first such one."""
    found = []
    for key in keys:
        if not store.check([key]):
            found.append(key)
            if len(keys) > _MOST_ASKED:
                break
    return found


def ranks_text(ranks: list[int]) -> str:
    """Return the names of ranks: "rank 3", "ranks 1 and 3", "ranks 1, 2 and 3".

    Of more than 12 ranks the text has the number and the first 12.
    """
    if len(ranks) > _MOST_NAMED:
        return f"{len(ranks)} ranks, {', '.join(map(str, ranks[:_MOST_NAMED]))} and others"
    *others, last = map(str, ranks)
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"


@contextmanager
def answering(rank: int) -> Iterator[None]:
    """Raise LinkError for any error of the store: ranks cannot find each other without it."""
    try:
        yield
    except SlacklineError:
        raise
    except (RuntimeError, OSError) as error:
        raise LinkError(
            "the store of the rendezvous does not answer; the process that serves it must live "
            f"until the group is open: {error}",
            rank=rank,
        ) from error
