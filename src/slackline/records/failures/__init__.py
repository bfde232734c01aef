"""Reports of the failures and hangs of one rank, written beside the rank's telemetry.

    _schema    the content of a report: dataclasses, with the limits of their sizes
    _stacks    the stacks of all threads, and an exception with its causes
    _dump      the stacks that a signal handler writes, and the parser of their text
    _files     the files of a directory: names and atomic writes
    _reporter  the thread that finds hangs and failures and writes the report of a rank
    _hooks     uncaught exceptions and signals of the process

A report is a copy of the rank's state at the time of each event: the operations that wait, the
ranks whose parts are missing, the rails, and the Python stacks. No call here raises an error into
the training; a directory that cannot be written gives one warning.
"""

from typing import TYPE_CHECKING

from slackline._lazy import lazily

if TYPE_CHECKING:
    from slackline.records.failures._dump import Dump, parse_dump
    from slackline.records.failures._files import (
        dump_file_of,
        encode,
        report_file_of,
        write_report,
    )
    from slackline.records.failures._hooks import reporter_of
    from slackline.records.failures._reporter import DEFAULT_HANG, Reporter, Source
    from slackline.records.failures._schema import (
        REPORT_VERSION,
        Error,
        Event,
        Frame,
        MissingPart,
        OperationState,
        RailState,
        Report,
        Thread,
    )
else:
    __getattr__ = lazily(
        __name__,
        {
            "_dump": "Dump parse_dump",
            "_files": "dump_file_of encode report_file_of write_report",
            "_hooks": "reporter_of",
            "_reporter": "DEFAULT_HANG Reporter Source",
            "_schema": (
                "REPORT_VERSION Error Event Frame MissingPart OperationState RailState Report "
                "Thread"
            ),
        },
    )

__all__ = [
    "DEFAULT_HANG",
    "REPORT_VERSION",
    "Dump",
    "Error",
    "Event",
    "Frame",
    "MissingPart",
    "OperationState",
    "RailState",
    "Report",
    "Reporter",
    "Source",
    "Thread",
    "dump_file_of",
    "encode",
    "parse_dump",
    "report_file_of",
    "reporter_of",
    "write_report",
]
