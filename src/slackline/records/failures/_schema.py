"""The content of a report.

Ranks are ranks in the job. Names that end in `_ns` are nanoseconds: `time_ns` is Unix time of the
rank's host, all others are CLOCK_MONOTONIC of this host or durations.
"""

from dataclasses import dataclass, field

__all__ = [
    "REPORT_VERSION",
    "Error",
    "Event",
    "Frame",
    "MissingPart",
    "OperationState",
    "RailState",
    "Report",
    "Thread",
]

REPORT_VERSION = 1
"""The version of the schema. Readers skip fields that they do not know; a change of the meaning of
a field increases the version."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """A Python function that a thread is in."""

    file: str
    """The path of the source file."""
    line: int
    """The line that runs, from 1."""
    function: str
    """The name of the function; "<module>" for the top of a file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Thread:
    """The stack of one Python thread."""

    name: str
    """The thread's name; empty if it is not known."""
    main: bool
    """Whether the thread is the main thread of the process."""
    frames: tuple[Frame, ...]
    """The functions that the thread is in, the innermost first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Error:
    """An exception."""

    type: str
    """The name of the exception's class, with its module: "slackline.errors.PeerError"."""
    message: str
    """The exception's text."""
    frames: tuple[Frame, ...] = ()
    """The functions that the exception has passed, the innermost first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingPart:
    """The missing part of another rank in an operation."""

    rank: int
    """The rank in the job."""
    state: str
    """"silent": no frame of the operation has come from the rank. "begun": the rank has posted the
    operation, and some data are missing. "taking": the rank has not confirmed all data sent to
    it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationState:
    """An operation that waits or has failed."""

    kind: str
    """The name of the collective, or "send" or "recv"."""
    bytes: int
    """The bytes of the whole buffer on one rank."""
    group: int
    """The number (epoch) of the group."""
    members: tuple[int, ...]
    """The ranks of the group."""
    tag: int
    """The tag; -1 for a collective that is matched by the order of the calls."""
    sequence: int
    """The number among the operations of the same group, tag and kind, from 0."""
    internal: int
    """0 for the program's operations; another number for operations of the library itself."""
    peer: int
    """The other rank of a message; -1 for a collective and for a receive from any source."""
    plan: str
    """The name of the plan, such as "ring"; empty for a message."""
    posted_ns: int
    """The time at which the operation was posted."""
    usual_ns: int
    """The mean duration of earlier operations of this kind and size; 0 before the first."""
    missing: tuple[MissingPart, ...]
    """The ranks whose parts are missing."""
    waits_for: str
    """The engine's sentence on the missing parts; empty for a failed operation."""
    refused: bool = False
    """Whether the operation failed when it was posted, before any of its data moved."""
    error: str = ""
    """The name of the error's class, such as "TimeoutError"; empty for an operation that waits."""
    message: str = ""
    """The error's text, which counts ranks in the group."""
    error_peer: int = -1
    """The rank that the error names; -1 for none."""
    departure: str = ""
    """How this rank ended its part in the group: "closed" in good order, "aborted", or empty if it
    said nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RailState:
    """A rail to another rank."""

    peer: int
    """The rank at the other end."""
    rail: int
    """The index of the rail in its link."""
    kind: str
    """"tcp", "udp" or "shm"."""
    name: str
    """The name of the rail, with its path."""
    state: str
    """"up", "suspect" or "ended"."""
    sent_bytes: int
    """Bytes sent since the rail began; 0 for shared memory, which does not count them."""
    received_bytes: int
    """Bytes received since the rail began; 0 for shared memory."""
    unconfirmed_bytes: int
    """Bytes that are queued, or sent and not confirmed by the peer."""
    sent_ns: int
    """The time at which frames were last seen to leave; 0 if none was seen. The state is sampled
    once a second while an operation waits."""
    received_ns: int
    """The time at which frames were last seen to arrive; 0 if none was seen."""
    outward: str
    """The sentence of `slackline.detect` on the direction to the peer; empty without one."""
    inward: str
    """The sentence on the direction from the peer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """A failure or a hang of a rank, with the rank's state at that time."""

    kind: str
    """"failure" (of operations), "hang", "exception" (which ends the script), "thread" (an
    exception that ends another thread), or "asked" (another rank has reported an event)."""
    time_ns: int
    monotonic_ns: int
    errors: tuple[Error, ...] = ()
    """The exception and its causes, the exception itself first; empty for the other kinds."""
    failed: tuple[OperationState, ...] = ()
    """The operations that have failed since the event before."""
    failed_left_out: int = 0
    """The number of further operations that have failed."""
    waiting: tuple[OperationState, ...] = ()
    """The operations that wait, the oldest first."""
    rails: tuple[RailState, ...] = ()
    threads: tuple[Thread, ...] = ()
    """The stacks of all threads, the main thread's first."""
    killed_for_memory: int = 0
    """The number of processes on this host that the kernel has killed for lack of memory since the
    rank's report was begun."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The events of one rank's process: the first ones and the latest ones."""

    version: int
    rank: int
    host: str
    clock: str
    """A name that two processes share exactly if they have the same CLOCK_MONOTONIC."""
    process: int
    """The process id."""
    script: str
    """The path of the program."""
    versions: dict[str, str] = field(default_factory=dict)
    """The versions of slackline, Python and torch."""
    left_out: int = 0
    """The number of events between the first and the latest ones that are left out."""
    events: tuple[Event, ...] = ()
