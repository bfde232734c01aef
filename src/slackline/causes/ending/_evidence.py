"""The facts that a directory holds about each rank of a job."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from slackline.errors import UsageError
from slackline.history import Job, read_dumps, read_reports
from slackline.records.failures import Dump, Event, Report

__all__ = ["Evidence", "RankEvidence", "gather"]


@dataclass(frozen=True, kw_only=True)
class RankEvidence:
    """The facts about one rank."""

    rank: int
    host: str = ""
    """The name of the rank's host; empty if no file names it."""
    report: Report | None = None
    dump: Dump | None = None
    seen_ns: int = 0
    """The Unix time of the rank's latest telemetry; 0 without telemetry."""
    ended: bool = False
    """Whether the engine ended in good order: the telemetry has its final counters."""
    exit_code: int | None = None
    """The exit code, minus the signal's number after a signal; None if it is not known or 0."""

    @property
    def events(self) -> tuple[Event, ...]:
        """The events of the rank's report, the earliest first."""
        return () if self.report is None else self.report.events


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The facts about a job."""

    ranks: dict[int, RankEvidence]
    """All ranks that the files name, in rising order."""
    problems: tuple[str, ...] = ()
    """Sentences about files that are missing or cannot be read."""
    findings: tuple[str, ...] = field(default=())
    """The sentences of `slackline.detect` on links and ranks, the latest last."""
    now_ns: int = 0
    """The Unix time at which the facts were gathered, if the job may still run; 0 afterwards."""


def gather(directory: Path, job: Job | None = None, *, now_ns: int = 0) -> Evidence:
    """Read the reports and the telemetry in `directory`, or in its folder "telemetry".

    `job` has the records of the directory if they have been read already. The directory of
    `slackline run --keep` also gives the exit codes of the ranks. Raises UsageError for a directory
    without any file of a rank.
    """
    if job is None:
        job = Job(directory)
        job.update()
    reports, problems = read_reports(job.directory)
    dumps, more = read_dumps(job.directory)
    problems += more + list(job.problems)
    codes = _exit_codes(directory, problems)
    known = {*job.ranks, *reports, *dumps, *codes}
    if not known and not problems:
        raise UsageError(f"{str(directory)!r} has no report and no telemetry of any rank")
    ranks = {}
    for rank in sorted({*known, *range(job.world_size)}):
        report, dump, told = reports.get(rank), dumps.get(rank), job.ranks.get(rank)
        header = None if told is None else told.header
        if header is not None and report is not None and report.process != header.process:
            problems.append(
                f"the report of rank {rank} is left out: it is of process {report.process}, and "
                f"the rank's latest process is {header.process}"
            )
            report = None
        if header is not None and dump is not None and dump.process != header.process:
            dump = None
        host = header.host if header is not None else "" if report is None else report.host
        ranks[rank] = RankEvidence(
            rank=rank,
            host=host,
            report=report,
            dump=dump,
            seen_ns=0 if told is None else told.seen_ns,
            ended=told is not None and told.counters is not None,
            exit_code=codes.get(rank),
        )
    return Evidence(
        ranks=ranks,
        problems=tuple(problems),
        findings=tuple(finding.sentence for finding in job.findings),
        now_ns=now_ns,
    )


def _exit_codes(directory: Path, problems: list[str]) -> dict[int, int]:
    """Return the exit codes that `slackline run` has kept, of the ranks that failed."""
    path = directory / "result.json"
    try:
        entries = json.loads(path.read_text())
        return {int(entry["rank"]): int(entry["exitcode"]) for entry in entries}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError) as error:
        problems.append(f"{path}: the exit codes of the ranks cannot be read: {error}")
        return {}
