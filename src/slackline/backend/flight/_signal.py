"""The request of one rank, through the job's store, that all ranks write their dumps.

A rank that hangs outside of slackline meets no error by itself, and torch's analyser needs the
dumps of all ranks to name the missing one. torch's NCCL backend asks in the same way: by a key
that a thread of each rank looks for.
"""

import logging
import threading
import time
from collections.abc import Collection

from slackline.backend._torch import Store, cloned_store

__all__ = ["DumpSignal"]

_log = logging.getLogger("slackline.flight")

_KEY = "slackline/flight"
_ANSWERS_S = 2.0
"""The longest wait for the other ranks' dumps, in a call that is about to raise its error."""
_CHECK_S = 0.02
_QUIET_S = 10.0
"""The time after a request in which further failures on this rank make no new request: one failure
of the job usually shows on all ranks, at different times."""


class DumpSignal:
    """The requests for dumps in the store that all ranks of a group share; any thread may call.

    Each request has a number. When the store cannot be reached any more, the object logs that once
    and does nothing from then on.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        """Create the requests of `rank` among `size` ranks, on a connection of their own."""
        self._store: Store | None = cloned_store(store)
        self._rank, self._size = rank, size
        self._lock = threading.Lock()
        self._number = 0
        self._quiet_until_s = 0.0

    def request(self, lost: Collection[int]) -> None:
        """Ask all ranks to write; wait up to two seconds until those that are not `lost` have.

        A call within ten seconds of the latest request does nothing.
        """
        with self._lock:
            now_s = time.monotonic()
            if self._store is None or now_s < self._quiet_until_s:
                return
            self._quiet_until_s = now_s + _QUIET_S
            number = self._number
        others = [rank for rank in range(self._size) if rank != self._rank and rank not in lost]
        try:
            self._store.set(self._key(number), str(self._rank))
            answers = [self._key(number, rank) for rank in others]
            pause = threading.Event()
            until_s = time.monotonic() + _ANSWERS_S
            while not self._store.check(answers) and time.monotonic() < until_s:
                pause.wait(_CHECK_S)
        except RuntimeError as error:
            self._lose(error)

    def requested(self) -> bool:
        """Return whether a rank has made a request that this rank has not answered."""
        store = self._store
        if store is None:
            return False
        try:
            return bool(store.check([self._key(self._number)]))
        except RuntimeError as error:
            self._lose(error)
            return False

    def answer(self) -> None:
        """State that this rank has written its dump for the present request."""
        with self._lock:
            number, self._number = self._number, self._number + 1
            self._quiet_until_s = time.monotonic() + _QUIET_S
            store = self._store
        if store is None:
            return
        try:
            store.set(self._key(number, self._rank), "")
        except RuntimeError as error:
            self._lose(error)

    def _key(self, number: int, rank: int | None = None) -> str:
        return f"{_KEY}/{number}" if rank is None else f"{_KEY}/{number}/{rank}"

    def _lose(self, error: RuntimeError) -> None:
        self._store = None
        # At the end of a job the store often ends before the last rank, so this is no warning.
        _log.info("rank %d asks for no dumps any more: the store has gone: %s", self._rank, error)
