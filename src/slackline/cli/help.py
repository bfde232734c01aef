"""`slackline help`: the meaning of an error, and what to do after it.

The texts are the docstrings of the errors, which every wheel has.
"""

import inspect
from typing import Annotated

import typer

from slackline import errors
from slackline.errors import UsageError

__all__ = ["explain"]


def explain(
    error: Annotated[
        str,
        typer.Argument(metavar="[ERROR]", help="Explain this error: PeerError. Default: list all."),
    ] = "",
) -> int:
    """Explain an error of slackline: what is dead after it, what may be used again, what to do."""
    if not error:
        print("\n".join(f"{name}: {_text(name).splitlines()[0]}" for name in errors.__all__))
        return 0
    if error not in errors.__all__:
        raise UsageError(
            f"there is no error {error!r}; there are {', '.join(errors.__all__)}; for a command, "
            "give the command --help"
        )
    print(f"{error}: {_text(error)}")
    return 0


def _text(name: str) -> str:
    text = inspect.getdoc(getattr(errors, name))
    if text is None:
        raise UsageError("the texts are docstrings, which python -OO leaves out: run without -OO")
    return text
