"""The handle of a reduction that runs in the background."""

from typing import Protocol

__all__ = ["Pending"]


class Pending(Protocol):
    """A reduction that has been posted and runs in the background."""

    @property
    def ended_ns(self) -> int:
        """The end by the monotonic clock in ns; 0 while pending, and if the end is not known."""

    def done(self) -> bool:
        """Return whether the reduction has ended, with or without an error. Never blocks."""

    def wait(self) -> None:
        """Block until the reduction has ended; raise its error if it failed."""
