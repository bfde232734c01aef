"""A thread that posts operations in the order of the calls."""

from collections.abc import Callable
from functools import partial

from slackline.backend.staging._transfers import DeferredTransfer
from slackline.backend.staging._worker import Worker
from slackline.nic import Transfer

__all__ = ["PostingQueue"]


class PostingQueue:
    """A first-in, first-out queue of operations, which one thread posts."""

    def __init__(self, name: str) -> None:
        """Create an empty queue; `name` is the name of its thread."""
        self._worker = Worker(name)

    def post(self, posting: Callable[[], Transfer]) -> Transfer:
        """Have the thread call `posting`, which may block; return its Transfer without blocking."""
        deferred = DeferredTransfer()
        self._worker.run(partial(deferred.post, posting))
        return deferred

    def close(self) -> None:
        """Post all queued operations and end the thread; block until the thread has ended."""
        self._worker.close()
