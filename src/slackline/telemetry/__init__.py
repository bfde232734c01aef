"""Telemetry of a run: records, the files they are written to, and sums over them.

    _records   the schema: StepSummary, GroupOpened, Counters, RunSummary, LinkVerdict,
               PipelineStep
    _lines     one record as one line of JSON, and back
    _files     a directory with one file for each rank: writer and reader
    _summary   many steps summed up as one run: a pure function

The files are append-only and may be read while a run writes them.
"""

from slackline.telemetry._files import Writer, file_of, read_directory, read_file
from slackline.telemetry._lines import decode, encode
from slackline.telemetry._records import (
    Counters,
    GroupOpened,
    LinkVerdict,
    PipelineStep,
    Record,
    RunSummary,
    StepSummary,
)
from slackline.telemetry._summary import Totals, summarize

__all__ = [
    "Counters",
    "GroupOpened",
    "LinkVerdict",
    "PipelineStep",
    "Record",
    "RunSummary",
    "StepSummary",
    "Totals",
    "Writer",
    "decode",
    "encode",
    "file_of",
    "read_directory",
    "read_file",
    "summarize",
]
