"""The files of reports in a directory: their names, atomic writes, and the reader of all reports.

rank-00001.report.json   the report of rank 1
rank-00001.stacks.txt    the stacks of rank 1 at a signal
reports.wanted           touched by each rank that reports, so that all other ranks report too
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from slackline.errors import UsageError
from slackline.records.failures._dump import Dump, parse_dump
from slackline.records.failures._json import decode, encode
from slackline.records.failures._schema import Report

__all__ = [
    "MOST_BYTES",
    "dump_file_of",
    "read_dumps",
    "read_reports",
    "report_file_of",
    "request_file_of",
    "write_report",
]

MOST_BYTES = 1 << 20
"""The most bytes of a report."""

_MOST_READ_BYTES = 16 << 20

Content = TypeVar("Content")


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


def read_reports(directory: Path) -> tuple[dict[int, Report], list[str]]:
    """Return the reports in the directory by rank, and a sentence for each that cannot be read."""
    return _read_all(directory, "rank-*.report.json", decode, lambda report: report.rank)


def read_dumps(directory: Path) -> tuple[dict[int, Dump], list[str]]:
    """Return the files of stacks by rank, and a sentence for each that cannot be read."""
    return _read_all(directory, "rank-*.stacks.txt", parse_dump, lambda dump: dump.rank)


def _read_all(
    directory: Path,
    pattern: str,
    parse: Callable[[str], Content],
    rank_of: Callable[[Content], int],
) -> tuple[dict[int, Content], list[str]]:
    found: dict[int, Content] = {}
    problems = []
    for path in sorted(directory.glob(pattern)):
        try:
            with path.open("rb") as file:
                content = parse(file.read(_MOST_READ_BYTES).decode(errors="replace"))
        except OSError as error:
            problems.append(f"{path}: {error.strerror}")
        except UsageError as error:
            problems.append(f"{path}: {error}")
        else:
            found[rank_of(content)] = content
    return found, problems
