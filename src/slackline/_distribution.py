"""The distribution, as `pip` knows it: its version, and the commands that install its extras.

The distribution has another name than the package: "slackline" on the package index is an older
project of somebody else.
"""

from importlib import metadata

__all__ = ["install", "version"]

_NAME = "slackline-torch"


def install(extra: str) -> str:
    """Return the command that installs the packages of an extra, such as "tls".

    The command needs no release on an index: pip takes the installed package, from a clone or from
    a wheel, and adds what the extra lists.
    """
    return f"pip install '{_NAME}[{extra}]'"


def version() -> str:
    """Return the version of the installed distribution."""
    return metadata.version(_NAME)
