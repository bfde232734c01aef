"""The stacks of all threads that Python's faulthandler writes at a fatal signal and at SIGTERM.

The handler is C code that also works while the main thread is blocked in the engine, when no Python
code can run. The first line of the file comes from `dump_header`, all others from the handler.
"""

import re
from dataclasses import dataclass

from slackline.errors import UsageError
from slackline.records.failures._schema import Frame, Thread

__all__ = ["Dump", "dump_header", "parse_dump"]

_HEADER = re.compile(
    r"slackline stacks: rank (\d+), process (\d+), main thread (0x[0-9a-f]+), opened at (\d+) ns"
)
_FATAL = re.compile(r"Fatal Python error: (.*)")
_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]+).*\(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


@dataclass(frozen=True, kw_only=True, slots=True)
class Dump:
    """The file of one process: empty of stacks until a signal ends the process."""

    rank: int
    """The rank in the job."""
    process: int
    """The process id."""
    opened_ns: int
    """The Unix time at which the process opened the file."""
    fatal: str
    """The fatal error, such as "Segmentation fault"; empty for SIGTERM and without a signal."""
    threads: tuple[Thread, ...]
    """The stacks at the first signal, the main thread's first; empty without a signal."""

    @property
    def terminated(self) -> bool:
        """Whether the process got SIGTERM."""
        return bool(self.threads) and not self.fatal


def dump_header(rank: int, process: int, main: int, opened_ns: int) -> str:
    """Return the first line of a file; `main` is the identity of the main thread."""
    return (
        f"slackline stacks: rank {rank}, process {process}, main thread {main:#x}, "
        f"opened at {opened_ns} ns\n"
    )


def parse_dump(text: str) -> Dump:
    """Parse a file of stacks. Raises UsageError for a file without its first line."""
    lines = text.splitlines()
    header = _HEADER.fullmatch(lines[0]) if lines else None
    if header is None:
        raise UsageError("the file of stacks is cut or damaged: its first line is missing")
    main = int(header[3], 16)
    fatal = ""
    stacks: dict[int, list[Frame]] = {}
    frames: list[Frame] | None = None
    for line in lines[1:]:
        if found := _FATAL.match(line):
            fatal = fatal or found[1]
        elif found := _THREAD.match(line):
            ident = int(found[1], 16)
            # A second signal repeats the threads; the stacks at the first one are nearer the cause.
            frames = None if ident in stacks else stacks.setdefault(ident, [])
        elif frames is not None and (found := _FRAME.fullmatch(line)):
            frames.append(Frame(file=found[1], line=int(found[2]), function=found[3]))
        elif not line.startswith("  "):
            frames = None
    threads = [
        Thread(name="MainThread" if ident == main else "", main=ident == main, frames=tuple(each))
        for ident, each in stacks.items()
    ]
    threads.sort(key=lambda thread: not thread.main)
    return Dump(
        rank=int(header[1]),
        process=int(header[2]),
        opened_ns=int(header[4]),
        fatal=fatal,
        threads=tuple(threads),
    )
