"""The files of reports in a directory: their names and atomic writes. slackline.history reads them.

rank-00001.report.json   the report of rank 1
rank-00001.stacks.txt    the stacks of rank 1 at a signal
reports.wanted           touched by each rank that reports, so that all other ranks report too
"""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

from slackline.records.failures._schema import Report

__all__ = [
    "MOST_BYTES",
    "dump_file_of",
    "encode",
    "report_file_of",
    "request_file_of",
    "write_report",
]

MOST_BYTES = 1 << 20
"""The most bytes of a report."""


def encode(report: Report) -> str:
    """Return the report as JSON."""
    return json.dumps(asdict(report), separators=(",", ":"))


def report_file_of(directory: Path, rank: int) -> Path:
    """Return the path of a rank's report in the directory."""
    return directory / f"rank-{rank:05d}.report.json"


def dump_file_of(directory: Path, rank: int) -> Path:
    """Return the path of the file with a rank's stacks at a signal."""
    return directory / f"rank-{rank:05d}.stacks.txt"


def request_file_of(directory: Path) -> Path:
    """Return the path of the file by which one rank asks all others for reports."""
    return directory / "reports.wanted"


def write_report(directory: Path, report: Report, most_bytes: int = MOST_BYTES) -> Report:
    """Replace a rank's report at once, and return the report as it was written.

    A report of more than `most_bytes` loses events from its middle. A reader finds the earlier
    report or the whole new one. Raises OSError if the directory cannot be written.
    """
    text = encode(report)
    while len(text) > most_bytes and len(report.events) > 1:
        middle = len(report.events) // 2
        kept = report.events[:middle] + report.events[middle + 1 :]
        report = replace(report, events=kept, left_out=report.left_out + 1)
        text = encode(report)
    path = report_file_of(directory, report.rank)
    directory.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    return report
