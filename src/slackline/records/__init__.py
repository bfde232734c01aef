"""Records of a job's ranks: telemetry, and the reports of failures.

    _records     the schema: a dataclass for each kind of record
    _choices     the records of choices, settings and predicted step times
    _devices     the record about a device that adds for a rank
    _hashes      the records of the hashes of a training's state, gradients and sums
    _operations  the records of operations, many in one line
    _lines       one record as one line of JSON
    _journal     the only writer of a process's file: a thread, a queue, limits of memory and disk
    _log         records as lines on stderr (SLACKLINE_LOG)
    _files       a directory with one file for each rank, and the writer's handle
    _core_times  the times for which a thread ran on a core and waited for one
    _host        the names of this host, of its clock and of its numbers of processes
    _summary     many steps summed up as one run, the rails in counters: pure functions
    failures/    the reports of failures and hangs, beside the telemetry

The files are append-only and may be read while a run writes them: `slackline.history` does.
"""

from typing import TYPE_CHECKING

from slackline._lazy import lazily

if TYPE_CHECKING:
    from slackline.records._core_times import CoreTimes, open_core_times
    from slackline.records._devices import STALLS, cycles_text
    from slackline.records._files import Writer, file_of
    from slackline.records._hashes import differences
    from slackline.records._host import clock_name, host_name, process_names, processor_name
    from slackline.records._journal import DEFAULT_LIMIT_BYTES
    from slackline.records._lines import KINDS, encode
    from slackline.records._log import RecordLog, log_of
    from slackline.records._operations import (
        COLUMNS,
        Operation,
        Operations,
        OperationsText,
        kind_of,
        plan_name_of,
    )
    from slackline.records._records import (
        SCHEMA_VERSION,
        ClockOffset,
        Conditions,
        Counters,
        Decision,
        DeviceReport,
        FileHeader,
        Gap,
        GroupOpened,
        HashedTensors,
        LinkReport,
        LinkVerdict,
        PipelineStep,
        Promise,
        RailChange,
        Record,
        RunSummary,
        Setting,
        StateHash,
        StepSummary,
        TensorHashes,
        Written,
    )
    from slackline.records._summary import MedianStep, Totals, rails_of, summarize
else:
    __getattr__ = lazily(
        __name__,
        {
            "_core_times": "CoreTimes open_core_times",
            "_devices": "STALLS cycles_text",
            "_files": "Writer file_of",
            "_host": "clock_name host_name process_names processor_name",
            "_hashes": "differences",
            "_journal": "DEFAULT_LIMIT_BYTES",
            "_lines": "KINDS encode",
            "_log": "RecordLog log_of",
            "_operations": "COLUMNS Operation Operations OperationsText kind_of plan_name_of",
            "_records": (
                "SCHEMA_VERSION ClockOffset Conditions Counters Decision DeviceReport FileHeader "
                "Gap GroupOpened HashedTensors LinkReport LinkVerdict PipelineStep Promise "
                "RailChange Record RunSummary Setting StateHash StepSummary TensorHashes "
                "Written"
            ),
            "_summary": "MedianStep Totals rails_of summarize",
        },
    )

__all__ = [
    "COLUMNS",
    "DEFAULT_LIMIT_BYTES",
    "KINDS",
    "SCHEMA_VERSION",
    "STALLS",
    "ClockOffset",
    "Conditions",
    "CoreTimes",
    "Counters",
    "Decision",
    "DeviceReport",
    "FileHeader",
    "Gap",
    "GroupOpened",
    "HashedTensors",
    "LinkReport",
    "LinkVerdict",
    "MedianStep",
    "Operation",
    "Operations",
    "OperationsText",
    "PipelineStep",
    "Promise",
    "RailChange",
    "Record",
    "RecordLog",
    "RunSummary",
    "Setting",
    "StateHash",
    "StepSummary",
    "TensorHashes",
    "Totals",
    "Writer",
    "Written",
    "clock_name",
    "cycles_text",
    "differences",
    "encode",
    "file_of",
    "host_name",
    "process_names",
    "processor_name",
    "kind_of",
    "log_of",
    "open_core_times",
    "plan_name_of",
    "rails_of",
    "summarize",
]
