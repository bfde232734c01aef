"""The signals that ask a command to end."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["collected_signals"]


@contextmanager
def collected_signals() -> Iterator[list[int]]:
    """Collect the signals that ask the command to end, so that they do not end it directly.

    The numbers of the signals are appended to the list that the context yields. If there is one,
    the command ends after the context, and further signals are ignored: none changes its exit code.
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, note) for number in asked]
    try:
        yield received
    finally:
        for number, handler in zip(asked, before, strict=True):
            signal.signal(number, signal.SIG_IGN if received else handler)
