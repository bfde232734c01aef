"""The reports of failures in a directory, and the stacks at a signal, one file for each rank."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from slackline._checked import parse_json
from slackline.errors import UsageError
from slackline.records.failures import REPORT_VERSION, Dump, Report, parse_dump

__all__ = ["parse_report", "read_dumps", "read_reports"]

_MOST_READ_BYTES = 16 << 20

Content = TypeVar("Content")


class _Head(msgspec.Struct):
    version: int


_HEAD, _REPORT = msgspec.json.Decoder(_Head), msgspec.json.Decoder(Report)


def parse_report(text: str) -> Report:
    """Parse a report; fields that this version does not know are skipped.

    Raises UsageError for text that is no report of this version.
    """
    version = parse_json(text, _HEAD, "the report").version
    if version != REPORT_VERSION:
        raise UsageError(
            f"the report has version {version} of the schema, and this slackline reads version "
            f"{REPORT_VERSION}"
        )
    return parse_json(text, _REPORT, "the report")


def read_reports(directory: Path) -> tuple[dict[int, Report], list[str]]:
    """Return the reports in the directory by rank, and a sentence for each that cannot be read."""
    return _read_all(directory, "rank-*.report.json", parse_report, lambda report: report.rank)


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
