"""The keys of a terminal and the signals of the process, waited for together."""

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Keys", "opened_keys"]

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Keys:
    """A reader of keys and signals; `opened_keys` makes it."""

    def __init__(self, keyboard: int | None, signals: int) -> None:
        self._keyboard = keyboard
        self._signals = signals

    def wait(self, seconds: float) -> int | None:
        """Wait at most `seconds` for a key, a signal or a change of the window.

        Return the signal's number if a signal asks the process to end, 0 for the key q, else None.
        """
        sources = [each for each in (self._keyboard, self._signals) if each is not None]
        ready, _, _ = select.select(sources, [], [], seconds)
        if self._signals in ready:
            for number in os.read(self._signals, 64):
                if number in _ENDING:
                    return number
        if self._keyboard in ready:
            pressed = os.read(self._keyboard, 64)
            if not pressed:
                self._keyboard = None  # The terminal has hung up; a signal or nothing follows.
            elif b"q" in pressed.lower():
                return 0
        return None


@contextmanager
def opened_keys() -> Iterator[Keys]:
    """Provide the keys of stdin, if stdin is a terminal, and the signals of this process.

    Within the context the terminal passes each key on at once and shows no key. Signals that ask
    the process to end are delivered by `Keys.wait` only. Call this in the main thread.
    """
    keyboard = sys.stdin.fileno() if sys.stdin.isatty() else None
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    caught = (*_ENDING, signal.SIGWINCH)
    handlers = [signal.signal(number, _noted) for number in caught]
    earlier = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    settings = None if keyboard is None else termios.tcgetattr(keyboard)
    try:
        if keyboard is not None:
            tty.setcbreak(keyboard)
        yield Keys(keyboard, reader)
    finally:
        if keyboard is not None and settings is not None:
            termios.tcsetattr(keyboard, termios.TCSADRAIN, settings)
        signal.set_wakeup_fd(earlier)
        for number, handler in zip(caught, handlers, strict=True):
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


def _noted(number: int, frame: FrameType | None) -> None:
    """Do nothing: the interpreter has written the signal's number to the pipe."""
