"""The reader of a run from its telemetry directory.

DIR/job.json                     the command line, where `slackline run --keep` wrote it
DIR/telemetry/rank-00000.jsonl   or DIR/rank-00000.jsonl: the records of each rank
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slackline.errors import UsageError
from slackline.faults import Plan, parse_all
from slackline.plan.collective import Collective
from slackline.predict._calibrate import calibrate
from slackline.predict._job import Job, read_job
from slackline.predict._model import covered_ns
from slackline.predict._run import Computation, Group, Link, Run, Step
from slackline.telemetry import (
    Alignment,
    ClockOffset,
    FileHeader,
    LinkReport,
    Operation,
    Operations,
    Record,
    StepSummary,
    align,
    read_all,
)

__all__ = ["load_telemetry"]

_SHARED_MEMORY = "shm"
_DEFAULT_PLAN = "ring"


@dataclass
class _Rank:
    """The records of one rank."""

    path: Path
    headers: list[FileHeader] = field(default_factory=list)
    steps: dict[int, StepSummary] = field(default_factory=dict)
    late_ns: dict[int, int] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    clocks: list[ClockOffset] = field(default_factory=list)
    round_trips_ns: list[int] = field(default_factory=list)
    rails: set[int] = field(default_factory=set)
    lost: int = 0


def load_telemetry(directory: Path, report: Callable[[str], None] | None = None) -> Run:
    """Read and calibrate the run whose telemetry is in `directory`.

    `report` receives a sentence for each damaged line; without it such a line raises UsageError.
    Raises UsageError that names the file for records from which no prediction can be made.
    """
    folder = directory / "telemetry" if (directory / "telemetry").is_dir() else directory
    files = sorted(folder.glob("rank-*.jsonl"))
    if not files:
        raise UsageError(
            f"there is no telemetry in {directory}: it has no rank-*.jsonl; "
            "slackline run --keep DIR and SLACKLINE_TELEMETRY=DIR write telemetry"
        )
    ranks = [_read(path, report) for path in files]
    _check_complete(directory, ranks)
    job = read_job(directory if folder != directory else directory.parent)
    alignment = align(header for rank in ranks for header in rank.headers)
    numbers = _steps_in_common(directory, ranks)
    groups = _groups(directory, ranks, numbers)
    steps = [_step(ranks, number, alignment) for number in numbers]
    every = [operation for rank in ranks for operation in rank.operations]
    one_host = all(operation.rail_names == (_SHARED_MEMORY,) for operation in every)
    run = Run(
        name=str(directory),
        ranks=len(ranks),
        hosts=1 if one_host else _hosts(ranks, every),
        nics=max(1, len(set().union(*(rank.rails for rank in ranks)))),
        groups=groups,
        steps=tuple(steps),
        link=Link(rate_bps=1, one_way_ns=0 if one_host else _one_way_ns(ranks)),
        faults=Plan() if job is None else _lasting_faults(directory, job),
        nominal_bps=job.rate_bps if job is not None else None,
        job=job,
    )
    return calibrate(run)


def _lasting_faults(directory: Path, job: Job) -> Plan:
    """Return the run's faults; raise UsageError for a fault that did not last all the time."""
    plan = parse_all(job.faults)
    if plan.next_change(0) is not None:
        raise UsageError(
            f"{directory} was measured while faults changed ({plan}): its steps have no common "
            "distribution"
        )
    return plan


def _read(path: Path, report: Callable[[str], None] | None) -> _Rank:
    rank = _Rank(path)
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


def _take(rank: _Rank, record: Record) -> None:
    match record:
        case FileHeader():
            rank.headers.append(record)
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
            rank.operations += [each for each in record.each() if _is_reduction(each)]
        case ClockOffset():
            rank.clocks.append(record)
        case LinkReport():
            rank.rails.add(record.rail)
            if record.round_trip_ns:
                rank.round_trips_ns.append(record.round_trip_ns)


def _is_reduction(operation: Operation) -> bool:
    reduces = operation.collective == Collective.ALL_REDUCE
    return reduces and not operation.internal and not operation.failed and operation.bytes > 0


def _check_complete(directory: Path, ranks: Sequence[_Rank]) -> None:
    """Raise UsageError where a rank's file is missing, or holds no steps or no operations."""
    found = sorted(rank.headers[0].rank for rank in ranks)
    missing = sorted(set(range(max(found) + 1)) - set(found))
    if missing:
        raise UsageError(f"{directory} has no telemetry of rank {missing[0]}")
    for rank in ranks:
        if not rank.steps:
            raise UsageError(
                f"{rank.path} has no steps: only slackline.overlap.DataParallel writes them"
            )
        if rank.lost:
            raise UsageError(f"{rank.path} lacks {rank.lost} operations that the engine lost")


def _steps_in_common(directory: Path, ranks: Sequence[_Rank]) -> list[int]:
    """Return the last steps of all ranks in which the gradients had the same groups.

    The first of these steps is left out: links, memory and trials settle in it. A step also needs
    its predecessor, whose late waits belong to its time.
    """
    common = sorted(set.intersection(*(set(rank.steps) for rank in ranks)))
    chosen: list[int] = []
    for number in reversed(common):
        layouts = {(rank.steps[number].groups, rank.steps[number].group_bytes) for rank in ranks}
        if len(layouts) > 1 or not ranks[0].steps[number].groups:
            break
        if chosen:
            latest = ranks[0].steps[chosen[-1]]
            if layouts != {(latest.groups, latest.group_bytes)} or number != chosen[-1] - 1:
                break
        chosen.append(number)
    chosen = [number for number in reversed(chosen) if number - 1 in chosen]
    if len(chosen) < 2:
        raise UsageError(
            f"{directory} has {len(chosen) + 1 if chosen else 0} successive steps at its end with "
            "the same groups of gradients on all ranks; at least 3 are needed"
        )
    return chosen


def _groups(directory: Path, ranks: Sequence[_Rank], numbers: Sequence[int]) -> tuple[Group, ...]:
    """Return the reductions of a step, each with the plan that its size has most often."""
    plans: dict[int, Counter[str]] = {}
    all_bytes: Counter[str] = Counter()
    for rank in ranks:
        for operation in rank.operations:
            plans.setdefault(operation.bytes, Counter())[operation.plan_name] += 1
            all_bytes[operation.plan_name] += operation.bytes
    if not all_bytes:
        raise UsageError(f"{directory} has no all_reduce: the ranks exchanged no gradients")
    usual = all_bytes.most_common(1)[0][0]

    def plan_of(nbytes: int) -> str:
        found = plans.get(nbytes)
        name = found.most_common(1)[0][0] if found else usual
        # All reductions have an aggregator or none has: a simulation has one set of members.
        return usual if "star" in (name, usual) else name or _DEFAULT_PLAN

    sizes = ranks[0].steps[numbers[0]].group_bytes
    return tuple(Group(nbytes=nbytes, plan=plan_of(nbytes)) for nbytes in sizes)


def _step(ranks: Sequence[_Rank], number: int, alignment: Alignment) -> Step:
    count = len(ranks)
    walls = [rank.steps[number].wall_ns for rank in ranks]
    exposed = [
        rank.late_ns[number - 1] + _early_ns(rank.steps[number], rank.late_ns[number])
        for rank in ranks
    ]
    return Step(
        wall_ns=sum(walls) // count,
        exposed_ns=sum(exposed) // count,
        busy_ns=sum(_busy_ns(rank, number, alignment) for rank in ranks) // count,
        ranks=tuple(_computation(rank, number) for rank in ranks),
    )


def _early_ns(step: StepSummary, late_ns: int) -> int:
    """Return the time for which a step's record counts waits before the call of `step`."""
    return max(0, step.exposed_ns - late_ns)


def _busy_ns(rank: _Rank, number: int, alignment: Alignment) -> int:
    """Return the time of a step, from call to call, in which the rank had a reduction."""
    step = rank.steps[number]
    end = alignment.from_unix(rank.headers[0].rank, step.time_ns)
    start = end - step.wall_ns
    return covered_ns(
        (max(start, operation.posted_ns), min(end, operation.ended_ns))
        for operation in rank.operations
        if operation.posted_ns < end and operation.ended_ns > start
    )


def _computation(rank: _Rank, number: int) -> Computation:
    """Return the times for which a rank computed in a step, which its record gives with waits.

    call of step | before | forward, with late waits | backward, with early waits | call
    """
    step = rank.steps[number]
    late_ns = rank.late_ns[number - 1]
    forward_ended = step.wall_ns - step.backward_ns
    before = max(0, forward_ended - step.forward_ns)
    gaps = []
    reached = forward_ended
    for posted in step.group_posted_ns:
        gaps.append(max(0, posted - reached))
        reached = max(reached, posted)
    after = step.wall_ns - reached - _early_ns(step, rank.late_ns[number])
    return Computation(
        before_ns=before,
        forward_ns=max(0, step.forward_ns - late_ns),
        backward_ns=tuple(gaps),
        after_ns=max(0, after),
    )


def _hosts(ranks: Sequence[_Rank], operations: Iterable[Operation]) -> int:
    """Return the number of hosts: each rank has its own unless some share memory."""
    if not any(_SHARED_MEMORY in operation.rail_names for operation in operations):
        return len(ranks)
    return len({rank.headers[0].host for rank in ranks})


def _one_way_ns(ranks: Sequence[_Rank]) -> int:
    """Return half of the shortest round trip of any probe; 0 without a probe."""
    halves = [clock.error_ns for rank in ranks for clock in rank.clocks]
    halves += [trip // 2 for rank in ranks for trip in rank.round_trips_ns]
    return min(halves, default=0)
