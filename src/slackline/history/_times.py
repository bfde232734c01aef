"""The time at which a rank wrote a record: one rule for all readers."""

from slackline.records import (
    ClockOffset,
    FileHeader,
    LinkReport,
    Operations,
    PipelineStep,
    Record,
)

__all__ = ["written_ns"]


def written_ns(record: Record, header: FileHeader) -> int | None:
    """Return the time at which a record was written, by the monotonic clock of the rank's host.

    `header` is that of the process: Unix times are converted by its two clocks, which were read
    together. The result is the latest time that the record states, and None if it states none.
    """
    match record:
        case FileHeader():
            return record.monotonic_ns
        case LinkReport() | ClockOffset():
            return record.at_ns
        case Operations():
            return record.ended_ns or None
        case PipelineStep():
            unix_ns = record.time_ns + record.wall_ns
        case _:
            unix_ns = getattr(record, "time_ns", 0)
    return unix_ns - header.time_ns + header.monotonic_ns if unix_ns else None
