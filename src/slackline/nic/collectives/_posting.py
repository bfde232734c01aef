"""The defaults of the keyword arguments that all operations of a group share, in native units."""

from __future__ import annotations

from datetime import timedelta

from slackline.errors import UsageError
from slackline.nic._interface import MessagePosting, Posting
from slackline.nic.collectives._checks import check_tag

__all__ = ["check_keywords", "limit_ns", "nanoseconds", "tag_of"]


def check_keywords(posting: MessagePosting, known: type[MessagePosting], rank: int) -> None:
    """Raise UsageError for a keyword argument that the operation does not take.

    `known` is the class of the operation's keyword arguments.
    """
    names = known.__annotations__.keys()
    if not posting.keys() <= names:
        wrong = ", ".join(sorted(posting.keys() - names))
        raise UsageError(f"an operation takes {', '.join(sorted(names))}, not {wrong}", rank=rank)


_LONGEST_NS = 100 * 365 * 86400 * 10**9
"""A hundred years: the engine adds a timeout to its clock, in 64 bits."""


def nanoseconds(timeout: timedelta) -> int:
    """Return `timeout` in nanoseconds, the unit of the engine; longer ones as a hundred years."""
    return min(timeout // timedelta(microseconds=1) * 1000, _LONGEST_NS)


def limit_ns(posting: MessagePosting, default_ns: int) -> int:
    """Return the time limit of an operation in nanoseconds; `default_ns` if it has none."""
    timeout = posting.get("timeout")
    return default_ns if timeout is None else nanoseconds(timeout)


def tag_of(posting: Posting, rank: int) -> int:
    """Return the checked tag, or -1 for a collective that is matched by call order."""
    tag = posting.get("tag")
    return -1 if tag is None else check_tag(rank, tag)
