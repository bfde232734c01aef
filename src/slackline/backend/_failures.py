"""Recovery of slackline's own error from an exception in which torch has wrapped it."""

import re

import slackline.errors as errors

__all__ = ["failure_of"]

_NAMED = re.compile(r"\b(PeerError|LinkError|FrameError|TimeoutError|MismatchError): ([^\n]*)")


def failure_of(error: BaseException) -> errors.SlacklineError | None:
    """Return `error` if slackline raised it, else the slackline error that caused it, or None.

    torch's Futures, and so DistributedDataParallel, pass errors through C++, which keeps only their
    type and text. An error that is restored from such a text has no `rank` and no `peer`.
    """
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, errors.SlacklineError):
            return found
        if isinstance(found, RuntimeError) and (named := _NAMED.search(str(found))):
            kind: type[errors.SlacklineError] = getattr(errors, named[1])
            return kind(named[2])
        found = found.__cause__ or found.__context__
    return None
