"""Reservation of message tags of a group for pipeline schedules.

User programs usually count tags from 0, so schedules take theirs from the top. All ranks make their
schedules in the same order, so all ranks get the same tags.
"""

from slackline.errors import UsageError
from slackline.nic import Group

__all__ = ["take_tags"]

_TAGS = 1 << 24
_RESERVED = 1
"""The number of tags at the top that are reserved for the backend itself."""
_LOWEST = 1 << 20


def take_tags(group: Group, count: int) -> int:
    """Reserve `count` message tags that no other schedule on the group uses; return the first.

    Raises UsageError if too few are left.
    """
    taken: int = getattr(group, "pipeline_tags", _RESERVED)
    first = _TAGS - taken - count
    if first < _LOWEST:
        raise UsageError(f"schedules on this group have taken {taken} tags; {count} more are many")
    group.pipeline_tags = taken + count  # type: ignore[attr-defined]
    return first
