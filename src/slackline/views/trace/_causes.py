"""The causes of slow steps as slices on the tracks of the ranks that they concern."""

from collections.abc import Iterator

from slackline.causes import Watch
from slackline.views.trace._events import Lanes, Slice

__all__ = ["cause_events"]


def cause_events(watch: Watch) -> Iterator[Slice]:
    """Yield a slice for each time in which a cause held, on each rank that it concerns.

    A cause that holds to the end lasts to the latest record.
    """
    lanes = Lanes()
    last_ns = max((rank.seen_ns for rank in watch.job.ranks.values()), default=0)
    for spell in watch.spells:
        begin_ns = spell.cause.since_ns
        end_ns = max(begin_ns, last_ns if spell.until_ns is None else spell.until_ns)
        for rank in spell.cause.ranks:
            yield Slice(
                track=lanes.track(rank, "causes of slow steps", begin_ns, end_ns),
                name=spell.cause.name,
                category="cause",
                begin_ns=begin_ns,
                end_ns=end_ns,
                arguments={"sentence": spell.cause.sentence, "look at": spell.cause.look_at},
            )
