"""The output of the ranks that the command shows: of one rank, or of all, with a prefix.

    first   the stdout of rank 0, or, if rank 0 writes nothing within two seconds of the first
            output, of the first rank that writes, such as the last one of a pipeline; and the
            stderr of this rank and of rank 0
    all     the lines of every rank, with a prefix
    2       rank 2

The last words of a rank that has failed are shown in any case.
"""

import time
from collections.abc import Callable
from typing import Protocol

from slackline.errors import UsageError

__all__ = ["ALL", "FIRST", "Shown", "check_shown"]

FIRST, ALL = "first", "all"
_PATIENCE_S = 2.0
"""The time from the first output of another rank in which rank 0 may still be the one to show."""


def check_shown(text: str, ranks: int) -> str:
    """Return a value of --output; raise UsageError for one that names no rank of the job."""
    if text in (FIRST, ALL) or (text.isdecimal() and int(text) < ranks):
        return text
    raise UsageError(
        f"--output must be {FIRST}, {ALL} or a rank from 0 to {ranks - 1}, not {text!r}"
    )


class _Screen(Protocol):
    """A display of ranks' output."""

    def stdout(self, output: bytes) -> None: ...

    def stderr(self, output: bytes) -> None: ...


class Shown:
    """The display of ranks' output, which `show` brings up to date."""

    def __init__(
        self,
        choice: str,
        ranks: range,
        read: Callable[[int, str], bytes],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Show the ranks of `choice`, of those in `ranks`; `read` returns a stream's new output.

        A machine without rank 0 shows nothing by default. `clock` counts seconds.
        """
        self._read, self._ranks, self._clock = read, ranks, clock
        self._all = choice == ALL
        self._only = int(choice) if choice.isdecimal() else None
        self._speaker: int | None = None
        self._held: dict[int, bytes] = {}
        """The output of ranks that may still be chosen, in the order of their first output."""
        self._heard_s = 0.0
        self._unfinished: dict[tuple[int, str], bytes] = {}

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks whose stderr has been shown completely."""
        if self._all:
            return frozenset(self._ranks)
        if self._only is not None:
            return frozenset([self._only])
        if self._ranks.start:
            return frozenset()
        return frozenset([0, self._speaker or 0])

    def show(self, screen: _Screen, *, ended: bool = False) -> None:
        """Show what the ranks have written since the last call; `ended` says that it is all."""
        if self._all:
            for rank in self._ranks:
                self._lines(rank, "stdout", screen.stdout, ended=ended)
                self._lines(rank, "stderr", screen.stderr, ended=ended)
            return
        if self._only is not None:
            self._speaker = self._only
        elif self._speaker is None and not self._ranks.start:
            self._choose(ended=ended)
        if self._speaker is not None:
            said = self._held.pop(self._speaker, b"") + self._read(self._speaker, "stdout")
            if said:
                screen.stdout(said)
        for rank in sorted(self.ranks):
            if said := self._read(rank, "stderr"):
                screen.stderr(said)

    def _choose(self, *, ended: bool) -> None:
        """Choose the rank whose stdout is shown, once it is clear."""
        for rank in self._ranks:
            if said := self._read(rank, "stdout"):
                if not self._held:
                    self._heard_s = self._clock()
                self._held[rank] = self._held.get(rank, b"") + said
        late = bool(self._held) and self._clock() - self._heard_s >= _PATIENCE_S
        if 0 in self._held:
            self._speaker = 0
        elif self._held and (late or ended):
            self._speaker = next(iter(self._held))
        if self._speaker is not None:
            self._held = {self._speaker: self._held[self._speaker]}

    def _lines(self, rank: int, stream: str, show: Callable[[bytes], None], *, ended: bool) -> None:
        """Show the complete lines of a stream with a prefix, and at the end also a rest."""
        said = self._unfinished.pop((rank, stream), b"") + self._read(rank, stream)
        *lines, rest = said.split(b"\n")
        if rest and ended:
            lines.append(rest)
        elif rest:
            self._unfinished[rank, stream] = rest
        if lines:
            show(b"".join(b"rank %d | %s\n" % (rank, line) for line in lines))
