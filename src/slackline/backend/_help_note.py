"""The last line of a traceback that ends a script: the command that explains the error."""

import sys
from types import TracebackType

from slackline import errors
from slackline.backend._failures import failure_of

__all__ = ["point_to_help"]


def point_to_help() -> None:
    """Have the hook for uncaught exceptions add a note to each error of slackline.

    Errors that torch's C++ code has passed on as RuntimeErrors get the note too. An error that the
    script catches has no note, so its text stays as it was raised.
    """
    former = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        found = failure_of(error)
        if found is not None:
            kinds = (each.__name__ for each in type(found).__mro__)
            name = next(each for each in kinds if each in errors.__all__)
            error.add_note(f"slackline help {name}: what is dead now, and what to do")
        former(kind, error, trace)

    sys.excepthook = show
