"""The tags of a group that a schedule takes for itself.

User programs count theirs from 0, so these come from the top; schedules are made in the same order
on all ranks, so that all ranks come to the same numbers.
"""

from slackline.errors import UsageError
from slackline.nic import Group

__all__ = ["take_tags"]

_TAGS = 1 << 24
_RESERVED = 1
"""The last one is the backend's own."""
_LOWEST = 1 << 20


def take_tags(group: Group, count: int) -> int:
    """The first of `count` tags that no other schedule on the group uses."""
    taken: int = getattr(group, "pipeline_tags", _RESERVED)
    first = _TAGS - taken - count
    if first < _LOWEST:
        raise UsageError(f"schedules on this group have taken {taken} tags; {count} more are many")
    group.pipeline_tags = taken + count  # type: ignore[attr-defined]
    return first
