"""Telemetry of a run: records, the files they are written to, and sums over them.

    _records     the schema: a dataclass for each kind of record
    _choices     the records of choices, settings and predicted step times
    _operations  the records of operations, many in one line
    _lines       one record as one line of JSON, and back
    _journal     the only writer of a process's file: a thread, a queue, limits of memory and disk
    _files       a directory with one file for each rank: the writer's handle and the readers
    _tail        a rank's file, read while the rank writes it
    _core_times  the times for which a thread ran on a core and waited for one
    _host        the names of this host and of its clock
    _align       the alignment of all hosts' clocks, and the merge of all ranks' records
    _summary     many steps summed up as one run, the rails in counters: pure functions

The files are append-only and may be read while a run writes them.
"""

from typing import TYPE_CHECKING

from slackline._lazy import lazily

if TYPE_CHECKING:
    from slackline.telemetry._align import Alignment, Placed, align, merge
    from slackline.telemetry._core_times import CoreTimes, open_core_times
    from slackline.telemetry._files import (
        Flaws,
        LineReader,
        Writer,
        file_of,
        read_all,
        read_directory,
        read_file,
    )
    from slackline.telemetry._host import clock_name, host_name
    from slackline.telemetry._journal import DEFAULT_LIMIT_BYTES
    from slackline.telemetry._lines import decode, encode
    from slackline.telemetry._operations import Operation, Operations, kind_of, plan_name_of
    from slackline.telemetry._records import (
        SCHEMA_VERSION,
        ClockOffset,
        Counters,
        Decision,
        FileHeader,
        Gap,
        GroupOpened,
        LinkReport,
        LinkVerdict,
        PipelineStep,
        Promise,
        Record,
        RunSummary,
        Setting,
        StepSummary,
    )
    from slackline.telemetry._summary import MedianStep, Totals, rails_of, summarize
    from slackline.telemetry._tail import RecordTail
else:
    __getattr__ = lazily(
        __name__,
        {
            "_align": "Alignment Placed align merge",
            "_core_times": "CoreTimes open_core_times",
            "_files": "Flaws LineReader Writer file_of read_all read_directory read_file",
            "_host": "clock_name host_name",
            "_journal": "DEFAULT_LIMIT_BYTES",
            "_lines": "decode encode",
            "_operations": "Operation Operations kind_of plan_name_of",
            "_records": (
                "SCHEMA_VERSION ClockOffset Counters Decision FileHeader Gap GroupOpened "
                "LinkReport LinkVerdict PipelineStep Promise Record RunSummary Setting "
                "StepSummary"
            ),
            "_summary": "MedianStep Totals rails_of summarize",
            "_tail": "RecordTail",
        },
    )

__all__ = [
    "DEFAULT_LIMIT_BYTES",
    "SCHEMA_VERSION",
    "Alignment",
    "ClockOffset",
    "CoreTimes",
    "Counters",
    "Decision",
    "FileHeader",
    "Gap",
    "Flaws",
    "GroupOpened",
    "LineReader",
    "LinkReport",
    "LinkVerdict",
    "MedianStep",
    "Operation",
    "Operations",
    "PipelineStep",
    "Placed",
    "Promise",
    "Record",
    "RecordTail",
    "RunSummary",
    "Setting",
    "StepSummary",
    "Totals",
    "Writer",
    "align",
    "clock_name",
    "decode",
    "encode",
    "file_of",
    "host_name",
    "kind_of",
    "merge",
    "open_core_times",
    "plan_name_of",
    "rails_of",
    "read_all",
    "read_directory",
    "read_file",
    "summarize",
]
