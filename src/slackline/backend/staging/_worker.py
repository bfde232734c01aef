"""A thread that calls functions one after the other."""

import logging
import queue
import threading
from collections.abc import Callable

__all__ = ["Worker"]

_log = logging.getLogger("slackline.backend.staging")


class Worker:
    """A first-in, first-out queue of functions, which one thread calls.

    The thread starts with the first function. It is a daemon, so that a process can end.
    """

    def __init__(self, name: str) -> None:
        """Create an empty queue; `name` is the name of its thread."""
        self._name = name
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def run(self, function: Callable[[], object]) -> None:
        """Queue a function for the thread; do not wait."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(
                    target=self._serve, args=(self._queue,), name=self._name, daemon=True
                )
                thread.start()
                self._thread = thread
            self._queue.put(function)

    def close(self) -> None:
        """Call all queued functions and end the thread; block until the thread has ended.

        A function that is queued meanwhile is called by another thread.
        """
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._queue.put(None)
                # The next thread would otherwise take the None that ends this one.
                self._queue = queue.SimpleQueue()
        if thread is not None:
            thread.join()

    def _serve(self, functions: "queue.SimpleQueue[Callable[[], object] | None]") -> None:
        while (function := functions.get()) is not None:
            try:
                function()
            except Exception:
                # No caller could get the error; the functions behind this one must still run.
                _log.exception("a function of the thread %s failed", self._name)
