"""Values of labels, and the bounds of their number."""

from collections.abc import Iterable, Mapping

from slackline.monitor import Link

__all__ = ["MOST_GROUPS", "MOST_RAILS", "OTHER", "grouped_links", "members_text"]

OTHER = "other"
"""The value that stands for all values beyond a bound."""

MOST_RAILS = 1024
"""The most rails, counted at both ends, with time series of their own."""

MOST_GROUPS = 8
"""The most groups of a rank with time series of their own."""

_LONGEST = 48


def members_text(members: Iterable[int]) -> str:
    """Return the ranks of a group as text: "0-3" for (0, 1, 2, 3), "0,2" for (0, 2).

    The result is "unknown" without members. A longer text than 48 characters is cut, and the number
    of members follows.
    """
    ranks = list(members)
    runs: list[tuple[int, int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], rank
        else:
            runs.append((rank, rank))
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    if len(text) > _LONGEST:
        return f"{text[:_LONGEST]}... ({len(ranks)} ranks)"
    return text or "unknown"


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
