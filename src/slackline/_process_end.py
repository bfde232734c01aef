"""The calls that end what is still open when the process ends.

atexit calls the handlers of a process in the reverse order of their registration. A program may use
its groups in a handler that it registered before it opened them, so the groups must end after the
program's own handlers. Importing slackline therefore registers one handler, which makes the calls
that were added later.
"""

import atexit
import os
from collections.abc import Callable

__all__ = ["ProcessEnd", "process_end"]


class ProcessEnd:
    """A list of calls that are made at the end of the process, the latest first."""

    def __init__(self) -> None:
        """Create an empty list, and register its handler with atexit now."""
        self._begin()
        # What is open belongs to the parent process.
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._calls: list[Callable[[], None]] = []
        self._last: list[Callable[[], None]] = []
        atexit.unregister(self.run)
        atexit.register(self.run)

    def add(self, call: Callable[[], None]) -> None:
        """Have `call` called at the end of the process, unless `remove` is called before."""
        self._calls.append(call)

    def add_last(self, call: Callable[[], None]) -> None:
        """Have `call` called once, after all calls of `add`."""
        if call not in self._last:
            self._last.append(call)

    def remove(self, call: Callable[[], None]) -> None:
        """Forget a call, if it is in the list."""
        if call in self._calls:
            self._calls.remove(call)

    def run(self) -> None:
        """Make all calls, the latest first, even if one of them raises an error."""
        while self._calls or self._last:
            call = (self._calls or self._last).pop()
            try:
                call()
            finally:
                self.run()


process_end = ProcessEnd()
"""The list of this process."""
