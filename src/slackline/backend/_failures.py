"""The slackline error behind an error of torch's."""

import re

import slackline.errors as errors

__all__ = ["failure_of"]

_NAMED = re.compile(r"\b(PeerError|LinkError|FrameError|TimeoutError|MismatchError): ([^\n]*)")


def failure_of(error: BaseException) -> errors.SlacklineError | None:
    """Return the slackline error that `error` is or carries; None if it has nothing to do with one.

    Futures, and so DistributedDataParallel, carry errors through C++, where only type and text of
    them are left: what is found there has no `rank` and no `peer`, and raising it hides nothing.
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
