"""A thread that posts operations in the order of the calls, after their copies to the host."""

from collections.abc import Callable
from functools import partial

from slackline.backend.staging._device import Event
from slackline.backend.staging._transfers import DeferredTransfer
from slackline.backend.staging._worker import Worker
from slackline.nic import Transfer

__all__ = ["PostingQueue"]


class PostingQueue:
    """A first-in, first-out queue of operations, which one thread posts.

    An operation is posted once the event of its copies to the host has happened.
    """

    def __init__(self, name: str) -> None:
        """Create an empty queue; `name` is the name of its thread."""
        self._worker = Worker(name)

    def post(self, ready: Event | None, posting: Callable[[], Transfer]) -> Transfer:
        """Queue an operation for the thread, and return its Transfer without blocking.

        The thread calls `posting` when `ready` has happened; None means at once.
        """
        deferred = DeferredTransfer()
        self._worker.run(partial(deferred.post, partial(_after, ready, posting)))
        return deferred

    def close(self) -> None:
        """Post all queued operations and end the thread; block until the thread has ended."""
        self._worker.close()


def _after(ready: Event | None, posting: Callable[[], Transfer]) -> Transfer:
    if ready is not None:
        ready.synchronize()
    return posting()
