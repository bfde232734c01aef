"""The errors that slackline raises, split by the party at fault.

    RuntimeError
    └── SlacklineError
        ├── UsageError (ValueError)      the caller asked for something impossible
        │   ├── MismatchError            two ranks asked for different things
        │   └── ClosedError              use after close, destroy or abort
        ├── PeerError                    a rank died or left
        ├── LinkError                    every rail (network path) to a rank failed
        │   └── FrameError               a frame arrived truncated or corrupt
        ├── TimeoutError (TimeoutError)  an operation was not done in time
        └── InternalError                slackline broke its own invariant

The docstring of each error says what is dead after it, what may be used again, and what to do;
`slackline help PeerError` prints it. The native core uses the same names.
"""

import builtins

__all__ = [
    "ClosedError",
    "FrameError",
    "InternalError",
    "LinkError",
    "MismatchError",
    "PeerError",
    "SlacklineError",
    "TimeoutError",
    "UsageError",
]


HELP_NOTE = "slackline help "
"""The beginning of the note under a traceback that names the command for its error."""


class SlacklineError(RuntimeError):
    """The base class of all errors that slackline raises.

    Dead afterwards: see the subclass. An attribute that does not apply to an error is None.
    Remedy: see the subclass; after a job, `slackline why DIRECTORY` names the first cause.
    """

    rank: int | None
    """The rank that raised the error."""
    peer: int | None
    """The other rank that the error concerns."""
    tag: int | None
    """The user's tag of the operation; 0 for a collective that is matched by call order."""
    sequence: int | None
    """The number of the operation among the operations with that tag, counted from 0."""

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        peer: int | None = None,
        tag: int | None = None,
        sequence: int | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.peer = peer
        self.tag = tag
        self.sequence = sequence

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the error with its attributes, so that it can cross process borders."""
        return type(self), (str(self),), self.__dict__.copy()


class UsageError(SlacklineError, ValueError):
    """A request by the caller that cannot be served; the message names the wrong value.

    Dead afterwards: nothing; the operation was never posted.
    May be used again: everything.
    Remedy: correct the value that the message names, and call again.
    """


class MismatchError(UsageError):
    """A disagreement of ranks on one operation: its kind, size, dtype, reduction or root.

    Dead afterwards: the operation; its targets hold undefined bytes.
    May be used again: the group, as long as all ranks go on with the same operation.
    Remedy: make all ranks call the same operations in the same order, with equal sizes and types;
    the message names the rank and the difference. SLACKLINE_FLIGHT_RECORDER=DIR writes the latest
    operations of every rank.
    """


class ClosedError(UsageError):
    """A use of a group or nic after it was closed, destroyed or aborted.

    Dead afterwards: nothing beyond the group or nic that was closed before.
    May be used again: any group or nic that is still open; open a new group to go on.
    Remedy: keep the group open until its last operation, or open a new one. If the program has not
    closed the group, look for the error that came before: an error ends the group.
    """


class PeerError(SlacklineError):
    """A rank that died, or left the group while others still needed it.

    Dead afterwards: the group, on every rank; buffers of unfinished operations are undefined.
    May be used again: the nic and every group that does not contain the dead rank.
    Remedy: look at the output of the rank that the message names, which ended first; `slackline why
    DIRECTORY` names the cause. To go on without the rank, call slackline.elastic.shrink() on all
    others.
    """


class LinkError(SlacklineError):
    """A failure of every rail (network path) to a peer that may still be alive.

    Dead afterwards: the link and the group; buffers of unfinished operations are undefined.
    May be used again: the nic and every group that does not cross the link.
    Remedy: check the network between the two hosts: `slackline doctor` on both, cables, switch
    ports, firewall. More NICs give a link more rails; a longer timeout outlasts a longer cut.
    """


class FrameError(LinkError):
    """A frame that arrived truncated, corrupt, or in another version of the protocol.

    Dead afterwards: the rail that carried the frame; also the group, if no other rail was left.
    May be used again: the nic and the other rails. The frame's bytes may already be in the target
    of an operation that has not ended; the sender repeats the frame over another rail before that
    operation ends.
    Remedy: install one version of slackline on all hosts, and let nothing else write to its ports.
    If frames are still corrupt, test the memory, the NICs and the cables of the two hosts.
    """


class TimeoutError(SlacklineError, builtins.TimeoutError):
    """An operation that was not done within its timeout.

    Dead afterwards: the operation, on every rank; its targets hold undefined bytes.
    May be used again: the group, as long as all ranks go on with the same operation. The buffers
    may be used again once the group is closed; until then a peer on this host may read registered
    buffers.
    Remedy: find out what the rank that the message names does instead: `slackline why DIRECTORY`
    shows its stack. If it only needs longer, as for a checkpoint, give the group a longer timeout.
    """


class InternalError(SlacklineError):
    """A violation of one of slackline's own invariants: a defect of this library, worth a report.

    Dead afterwards: the nic and all its groups.
    May be used again: nothing of this process's nic; a new process may join a new group.
    Remedy: start the processes again, and report the message with the files of
    `slackline run --keep DIRECTORY`. Where the message names a device, look at the device first.
    """
