"""The store of one change of a group's members, whose every call ends at a deadline.

torch's TCPStore waits without a limit for a server that has stopped. A thread of its own therefore
makes the calls; who waits for the thread gives up at the deadline.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Unanswered
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from slackline.elastic._handle import Connections, Door, Handle
from slackline.errors import LinkError

__all__ = ["Meeting"]

_Result = TypeVar("_Result")
_CONNECT_S = 1.0
"""The longest try to connect to one address of several."""
_PAUSE_S = 0.02
_GRACE_S = 2.0
"""The time after the deadline in which a call may still be answered: a rank that gives a change up
asks for the decision of the others."""
_LATE_S = 0.5
"""The least time for an answer. A rank that has stood still beyond the deadline learns the decision
of the others all the same."""


class Meeting:
    """The store at the door of the first of `handles`, for this rank, until a deadline.

    Use it as a context manager. Every call raises LinkError if the store does not answer.
    """

    def __init__(
        self, handles: tuple[Handle, ...], rank: int, door: Door, deadline_s: float
    ) -> None:
        """Connect to the store; raise LinkError if that does not succeed until `deadline_s`.

        The deadline is a time of time.monotonic(). `door` is this process's own.
        """
        self._leader, self._rank, self.deadline_s = handles[0], rank, deadline_s
        self._unanswered = False
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._door = door
        self.keys = set[str]()
        """The keys that this rank has set or asked for."""
        self._told = dict[str, str]()
        threading.Thread(target=self._serve, name="slackline meeting", daemon=True).start()
        try:
            kept = door.connections if rank == 0 else door.kept.get(self._leader.name)
            self._to = kept or self._call(partial(self._connect, deadline_s))
        except BaseException:
            self._calls.put(None)
            raise

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.put(None)

    def set(self, key: str, value: str, /) -> None:
        """Set the value of a key."""
        self.keys.add(key)
        self._told[key] = value
        self._call(lambda: self._to.meetings.set(key, value))

    def get(self, key: str, /) -> bytes:
        """Return the value of a key that is set."""
        return self._call(lambda: self._to.meetings.get(key))

    def get_together(self, keys: list[str], /) -> list[bytes]:
        """Return the values of keys that are set, in one exchange of messages with the store."""
        return self._call(lambda: self._to.meetings.multi_get(keys))

    def check(self, keys: list[str], /) -> bool:
        """Return whether all keys are set."""
        self.keys.update(keys)
        return self._call(lambda: self._to.meetings.check(keys))

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set a key's value if it is `expected`, or if the key is not set; return the value."""
        self.keys.add(key)
        return self._call(lambda: self._to.meetings.compare_set(key, expected, desired))

    def delete(self, keys: Collection[str], /) -> None:
        """Delete keys; one that is not set is no error."""

        def delete_each() -> None:
            for key in keys:
                self._to.meetings.delete_key(key)

        if keys:
            self._call(delete_each)

    @property
    def group_store(self) -> Any:
        """The torch store at the same door for the group."""
        return self._to.groups

    def _call(self, function: Callable[[], _Result]) -> _Result:
        """Return the result of a call to the store; if the connection was cut, connect again.

        The call is then made twice, with the same result as if it had been made once.
        """
        for again in (False, True):
            try:
                if again:
                    self._to = self._answered(self._connect_again)
                return self._answered(function)
            except LinkError:
                raise
            except (RuntimeError, OSError) as error:
                if again or self._rank == 0:
                    raise self._silent(f"does not answer: {error}") from error
        raise AssertionError("the second try has an end")

    def _answered(self, function: Callable[[], _Result]) -> _Result:
        called: Future[_Result] = Future()
        self._calls.put((called, function))
        left_s = self.deadline_s + _GRACE_S - time.monotonic()
        # After this time the others do not wait for the first rank, which must not decide any more.
        least_s = 0.0 if self._rank == 0 or self._unanswered else _LATE_S
        try:
            return called.result(max(least_s, left_s))
        except Unanswered:
            self._unanswered = True
            raise self._silent("does not answer") from None
        finally:
            del called  # It refers to its error, and the error refers to this call's variables.

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            called, function = call
            try:
                called.set_result(function())
            except BaseException as error:
                called.set_exception(error)
            del call, called, function  # As above: the connections end without a collection.

    def _connect(self, until_s: float) -> Connections:
        """Return new connections to the door of the first rank.

        A door is open for as long as its process lives. Where an address refuses connections, the
        process has ended, and waiting does not help; a network that does not answer may do so
        later, until the time `until_s` of time.monotonic().
        """
        handle, reasons, refused = self._leader, list[str](), False
        while not refused and time.monotonic() < until_s:
            reasons = []
            for address in handle.reached_from(self._door.handle):
                try:
                    store = self._try(address, until_s)
                    if store.check([handle.door_key()]):
                        kept = Connections(store, store.clone())
                        self._door.kept = {handle.name: kept}
                        return kept
                    reasons.append(f"another process listens at {address}, port {handle.port}")
                    refused = True
                except (RuntimeError, OSError) as error:
                    reasons.append(f"{address}, port {handle.port}: {error}")
                    refused = refused or isinstance(error, ConnectionRefusedError)
            if not refused:
                time.sleep(_PAUSE_S)  # An address without a route fails at once.
        raise self._silent(f"cannot be reached: {'; '.join(reasons) or 'its time is up'}")

    def _connect_again(self) -> Connections:
        """Return connections to the door of the first rank after those before were cut.

        Tells all keys again: the store does not confirm them, so the cut may have swallowed some.
        """
        to = self._connect(self.deadline_s + _GRACE_S)
        for key, value in self._told.items():
            to.meetings.set(key, value)
        return to

    def _try(self, address: str, until_s: float) -> Any:
        from torch._C._distributed_c10d import TCPStore

        left_s = max(_PAUSE_S, until_s - time.monotonic())
        socket.create_connection((address, self._leader.port), min(_CONNECT_S, left_s)).close()
        return TCPStore(
            address,
            self._leader.port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=left_s),
        )

    def _silent(self, what: str) -> LinkError:
        self._door.kept.pop(self._leader.name, None)
        return LinkError(
            f"the process of the first handle in the list, where the others meet, {what}",
            rank=self._rank,
            peer=0,
        )
