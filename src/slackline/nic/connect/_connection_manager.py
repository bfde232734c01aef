"""The connection manager's thread: an asyncio event loop that runs as long as the nic is open.

Listening, dialling, handshakes and watching for the end of a connection are tasks on this loop, so
a slow unauthenticated peer delays no other connection. No work of a training step runs here.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from slackline.errors import ClosedError

__all__ = ["ConnectionManager"]

_log = logging.getLogger("slackline.nic")

Result = TypeVar("Result")

_GLANCE_S = 0.1


class ConnectionManager:
    """The connection manager: an event loop on its own thread, from `start` to `stop`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def start(self) -> None:
        """Start the thread, which the other methods need; change nothing if that fails."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(
            target=self._serve, args=(loop,), name="slackline-links", daemon=True
        )
        try:
            thread.start()
        except BaseException:
            loop.close()
            raise
        self._loop, self._thread = loop, thread

    def run(
        self, work: Coroutine[Any, Any, Result], glance: Callable[[], None] | None = None
    ) -> Result:
        """Run a coroutine on the loop and block until it ends; return or raise its result.

        `glance` is called every 100 ms meanwhile; an error that it raises ends the call and cancels
        the coroutine. Must not be called on the loop's own thread. Raises ClosedError once the loop
        has stopped.
        """
        with self._lock:
            if self._stopped or self._loop is None:
                work.close()
                raise ClosedError("the nic is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            while glance is not None:
                if concurrent.futures.wait([future], _GLANCE_S).done:
                    break
                glance()
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClosedError("the nic was closed meanwhile") from None
        finally:
            future.cancel()  # The waiting thread may have been interrupted.
            del future  # It refers to its error, and the error refers to this call's variables.

    def post(self, fn: Callable[..., object], *args: object) -> None:
        """Have the loop call `fn(*args)` soon, from any thread; do nothing on a stopped loop."""
        with self._lock:
            if self._loop is not None and not self._stopped:
                self._loop.call_soon_threadsafe(fn, *args)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a background task; log its error, if any. Must be called on the loop's thread."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def stop(self) -> None:
        """Cancel every task and end the thread; further calls are allowed.

        Must not be called on the loop's own thread.
        """
        with self._lock:
            already, self._stopped = self._stopped, True
            if self._loop is not None and not already:
                self._loop.call_soon_threadsafe(self._loop.stop)
        if self._thread is not None:
            self._thread.join()
        self._loop = None

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            _end_tasks(loop)
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the connection manager met an error of its own", exc_info=error)


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel every task of a loop that has stopped, and run the loop until the tasks have ended.

    An error that a callback of the loop raised refers to the variables of the function that runs
    the loop. That function must therefore have no task among its variables, since a task refers to
    the error that ended it.
    """
    tasks = list(asyncio.all_tasks(loop))
    ended = asyncio.gather(*tasks, return_exceptions=True)
    try:
        while tasks:
            tasks.pop().cancel()
        loop.run_until_complete(ended)
    finally:
        del ended
