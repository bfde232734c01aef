"""The times of a cause of slow steps, in words."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slackline.diagnose import Recurrence

__all__ = ["when"]


def when(each: "Recurrence", first_ns: int) -> str:
    """Return the times of a cause in seconds from the Unix time `first_ns`, the first record's."""
    since_s, named_s = max(0, each.first_ns - first_ns) / 1e9, (each.named_ns - first_ns) / 1e9
    if each.times > 1:
        span = f"{each.times} times from {since_s:.1f} s on, {each.total}"
        span += " in all" if each.until_ns is not None else ""
    elif each.until_ns is None:
        span = f"since {since_s:.1f} s"
    else:
        span = f"from {since_s:.1f} s to {(each.until_ns - first_ns) / 1e9:.1f} s"
    return f"{span} (named at {named_s:.1f} s)"
