"""Samples of links as counters, and verdicts, decisions and gaps as instants."""

from collections.abc import Callable, Iterator

from slackline.history import Alignment
from slackline.records import Decision, Gap, LinkReport, LinkVerdict
from slackline.units import count
from slackline.views.trace._events import Event, Instant, Sample, Track

__all__ = ["note_events", "sample_events"]


def sample_events(report: LinkReport, alignment: Alignment) -> Iterator[Event]:
    """Yield the samples of a rail: its rates from the begin of the interval, the rest at its end.

    Rates are in bits per second, the round trip in nanoseconds, the queue in bytes.
    """
    end_ns = alignment.unix_ns(report.rank, report.at_ns)
    begin_ns = end_ns - report.interval_ns
    name = f"to rank {report.peer}, rail {report.rail}"
    interval_ns = max(report.interval_ns, 1)
    for what, unit, time_ns, value in (
        ("rate out", "bit/s", begin_ns, report.sent_bytes * 8 * 10**9 // interval_ns),
        ("rate in", "bit/s", begin_ns, report.received_bytes * 8 * 10**9 // interval_ns),
        ("round trip", "ns", end_ns, report.round_trip_ns),
        ("queued", "bytes", end_ns, report.queued_bytes),
    ):
        yield Sample(Track(report.rank, f"{name}: {what}", unit=unit), time_ns, value)


def note_events(
    record: LinkVerdict | Decision | Gap, unix_ns: Callable[[int, int], int]
) -> Iterator[Event]:
    """Yield the instant of a verdict, a decision or a gap.

    `unix_ns` converts a rank's Unix time to that of the reference clock.
    """
    time_ns = unix_ns(record.rank, record.time_ns)
    match record:
        case LinkVerdict():
            about = f"link {record.source}>{record.target}"
            if record.source == record.target:
                about = f"rank {record.source}"
            yield Instant(
                track=Track(record.rank, "verdicts"),
                name=f"{about} {record.condition}",
                category="verdict",
                time_ns=time_ns,
                arguments={
                    "reason": record.reason,
                    "rail": record.rail,
                    "over_ns": record.over_ns,
                },
            )
        case Decision():
            yield Instant(
                track=Track(record.rank, "decisions"),
                name=f"{record.subject}: {record.choice}",
                category="decision",
                time_ns=time_ns,
                arguments={"reason": record.reason},
            )
        case Gap():
            yield Instant(
                track=Track(record.rank, "gaps"),
                name=f"{count(record.lost, 'record')} missing",
                category="gap",
                time_ns=time_ns,
                arguments={"reason": record.reason},
            )
