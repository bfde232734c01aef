"""The engine's failures as slackline's errors."""

import slackline.errors as errors

__all__ = ["FailureTuple", "to_error"]

FailureTuple = tuple[int, str, int, int, int, int]
"""(fault, message, rank, peer, tag, sequence) as the engine tells it; -1: does not apply."""

_ERRORS: dict[int, type[errors.SlacklineError]] = {
    1: errors.UsageError,
    2: errors.MismatchError,
    3: errors.PeerError,
    4: errors.LinkError,
    5: errors.FrameError,
    6: errors.TimeoutError,
    7: errors.ClosedError,
    8: errors.InternalError,
}


def to_error(failure: FailureTuple) -> errors.SlacklineError:
    """A fresh error for `failure`; the codes are those of slackline::Fault."""
    fault, message, rank, peer, tag, sequence = failure
    return _ERRORS[fault](
        message,
        rank=None if rank < 0 else rank,
        peer=None if peer < 0 else peer,
        tag=None if tag < 0 else tag,
        sequence=None if sequence < 0 else sequence,
    )
