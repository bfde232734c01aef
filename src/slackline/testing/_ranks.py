"""Ranks as threads over the real engine: each rank has a nic of its own."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from slackline.errors import TimeoutError, UsageError
from slackline.nic import Group, NativeNic, NicOptions, Store

__all__ = ["MemoryStore", "run_ranks"]

Result = TypeVar("Result")

_ARENA_BYTES = 256 << 20
_TIMEOUT = timedelta(seconds=20)
_LIMIT = timedelta(seconds=50)


class MemoryStore:
    """An implementation of slackline.nic.Store for ranks that are threads of one process.

    Any thread may use the store.
    """

    def __init__(self, *, timeout: timedelta = _TIMEOUT) -> None:
        self._timeout = timeout
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str, /) -> None:
        """Publish `value` under `key`; a second value replaces the first."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, /) -> bytes:
        """Return the value under `key`; block until it is set, at most for the store's timeout.

        Raises TimeoutError when the timeout has passed.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: key in self._values, self._timeout.total_seconds()
            ):
                raise TimeoutError(f"the store Timed out waiting for {key!r}")
            return self._values[key].encode()

    def check(self, keys: list[str], /) -> bool:
        """Return whether all `keys` have been set."""
        with self._changed:
            return all(key in self._values for key in keys)


def run_ranks(
    size: int,
    body: Callable[[Group], Result],
    *,
    options: NicOptions | Callable[[int], NicOptions] | None = None,
    store: Store | Callable[[int], Store] | None = None,
    timeout: timedelta = _TIMEOUT,
    limit: timedelta = _LIMIT,
) -> list[Result]:
    """Run `body(group)` on each of `size` ranks and return the results in the order of the ranks.

    Every rank is a thread with its own engine, so the ranks are separated as processes are, by
    sockets, shared memory and clocks of their own. `options` are the options of every nic, or a
    function from the rank to its options; None means the defaults with a small arena. The ranks
    find each other through `store`, by default a new MemoryStore; a function from the rank to a
    store gives each rank its view of one store. `timeout` is the groups' timeout.

    Blocks until all ranks have ended, then raises the error of the first rank that failed. A rank
    that fails aborts its group, so that the others do not wait for it. Raises TimeoutError when
    some ranks have not ended within `limit`; their threads are left behind as daemons.
    """
    if size < 1:
        raise UsageError(f"size must be a positive integer, not {size}")
    shared = store or MemoryStore(timeout=timeout)
    results: dict[int, Result] = {}
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            where = shared if isinstance(shared, Store) else shared(rank)
            results[rank] = _run_rank(where, rank, size, body, _options(options, rank), timeout)
        except BaseException as error:  # The caller's thread raises the error again.
            failures.append(error)

    threads = [
        threading.Thread(target=run, args=(rank,), name=f"rank-{rank}", daemon=True)
        for rank in range(size)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + limit.total_seconds()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if failures:
        raise failures[0]
    if hanging := [str(rank) for rank, thread in enumerate(threads) if thread.is_alive()]:
        seconds = limit.total_seconds()
        raise TimeoutError(f"ranks {', '.join(hanging)} Timed out: not done after {seconds} s")
    return [results[rank] for rank in range(size)]


def _options(given: NicOptions | Callable[[int], NicOptions] | None, rank: int) -> NicOptions:
    if given is None:
        return NicOptions(arena_bytes=_ARENA_BYTES)
    return given if isinstance(given, NicOptions) else given(rank)


def _run_rank(
    store: Store,
    rank: int,
    size: int,
    body: Callable[[Group], Result],
    options: NicOptions,
    timeout: timedelta,
) -> Result:
    nic = NativeNic(options)
    try:
        group = nic.open_group(store, rank, size, timeout=timeout)
        try:
            result = body(group)
        except BaseException as error:
            group.abort(f"{type(error).__name__}: {error}")
            group.close()
            raise
        group.close()
        return result
    finally:
        nic.close()
