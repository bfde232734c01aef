"""The records of one rank's telemetry file from which a run is made."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from slackline.errors import UsageError
from slackline.history import read_all
from slackline.plan.collective import Collective
from slackline.records import (
    ClockOffset,
    FileHeader,
    LinkReport,
    Operation,
    Operations,
    Record,
    StepSummary,
)

__all__ = ["RankRecords", "read_records"]


@dataclass
class RankRecords:
    """The records of one rank that a prediction needs."""

    path: Path
    headers: list[FileHeader] = field(default_factory=list)
    steps: dict[int, StepSummary] = field(default_factory=dict)
    late_ns: dict[int, int] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    clocks: list[ClockOffset] = field(default_factory=list)
    round_trips_ns: list[int] = field(default_factory=list)
    rails: set[int] = field(default_factory=set)
    lost: int = 0

    @property
    def number(self) -> int:
        """The rank in the job."""
        return self.headers[0].rank


def read_records(path: Path, report: Callable[[str], None] | None) -> RankRecords:
    """Return the records of a rank's file; raise UsageError that names the file where they fail."""
    rank = RankRecords(path)
    for record in read_all(path, report):
        _take(rank, record)
    if not rank.headers:
        raise UsageError(f"{path} has no record of the kind file, with which telemetry begins")
    processes = {header.process for header in rank.headers}
    if len(processes) > 1:
        raise UsageError(
            f"{path} has the records of {len(processes)} processes: give the telemetry of one run"
        )
    return rank


def _take(rank: RankRecords, record: Record) -> None:
    match record:
        case FileHeader():
            rank.headers.append(record)
        case StepSummary(plain=True):
            pass  # The steps follow from the operations, whose times say more.
        case StepSummary(optimizer=0):
            rank.steps[record.step] = record
            rank.late_ns[record.step] = sum(record.group_late_ns)
        case StepSummary():
            raise UsageError(
                f"{rank.path} has steps of {record.optimizer + 1} optimizers: predictions need a "
                "model with one optimizer"
            )
        case Operations():
            rank.lost += record.lost
            rank.operations += [each for each in record.rows if _is_reduction(each)]
        case ClockOffset():
            rank.clocks.append(record)
        case LinkReport():
            rank.rails.add(record.rail)
            if record.round_trip_ns:
                rank.round_trips_ns.append(record.round_trip_ns)


def _is_reduction(operation: Operation) -> bool:
    reduces = operation.collective == Collective.ALL_REDUCE
    return reduces and not operation.internal and not operation.failed and operation.bytes > 0
