"""How an operation is posted: the keywords that all of them share."""

from __future__ import annotations

from datetime import timedelta
from typing import TypedDict

from slackline.nic._checks import check_tag

__all__ = ["MessagePosting", "Posting", "limit_ns", "nanoseconds", "tag_of"]


class MessagePosting(TypedDict, total=False):
    """How a message is posted; see slackline.nic.Group."""

    priority: int
    timeout: timedelta | None
    blocking: bool


class Posting(MessagePosting, total=False):
    """How a collective is posted; see slackline.nic.Group."""

    tag: int | None


def nanoseconds(timeout: timedelta) -> int:
    """`timeout` as the engine counts time."""
    return timeout // timedelta(microseconds=1) * 1000


def limit_ns(posting: MessagePosting, default_ns: int) -> int:
    """Nanoseconds that the operation may take."""
    timeout = posting.get("timeout")
    return default_ns if timeout is None else nanoseconds(timeout)


def tag_of(posting: Posting, rank: int) -> int:
    """The checked tag, -1 for a collective in call order."""
    tag = posting.get("tag")
    return -1 if tag is None else check_tag(rank, tag)
