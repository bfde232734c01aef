"""Values of labels, and the bounds of their number."""

from collections.abc import Iterable, Mapping

from slackline.history import Link
from slackline.views.terminal import ranks_text

__all__ = ["MOST_CAUSES", "MOST_GROUPS", "MOST_RAILS", "OTHER", "grouped_links", "group_text"]

OTHER = "other"
"""The value that stands for all values beyond a bound."""

MOST_RAILS = 1024
"""The most rails, counted at both ends, with time series of their own."""

MOST_GROUPS = 8
"""The most groups of a rank with time series of their own."""


MOST_CAUSES = 100
"""The most causes of slow steps, by kind and name, with time series of their own."""


def group_text(members: Iterable[int]) -> str:
    """Return the name of a group, made from its ranks: "0-3"; "unknown" without members."""
    return ranks_text(members) or "unknown"


def grouped_links(
    links: Mapping[tuple[int, int, int], Link],
) -> tuple[list[Link], dict[int, list[Link]]]:
    """Return the rails with time series of their own, and the other rails by the rank.

    The first MOST_RAILS rails that were reported have their own time series. A rail therefore never
    moves from one part to the other while a job runs, and no counter goes back.
    """
    found = list(links.values())
    rest: dict[int, list[Link]] = {}
    for link in found[MOST_RAILS:]:
        rest.setdefault(link.rank, []).append(link)
    return found[:MOST_RAILS], rest
