"""The reader of a run from its telemetry directory, with the files of all ranks.

DIR/job.json                     the command line, where `slackline run --keep` wrote it
DIR/telemetry/rank-00000.jsonl   or DIR/rank-00000.jsonl: the records of each rank
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from slackline.errors import UsageError
from slackline.faults import Plan, parse_all
from slackline.history import align, files_of, telemetry_of
from slackline.lab import beyond_kernel, burst_bytes
from slackline.plan.collective import TREE
from slackline.predict._calibrate import calibrate
from slackline.predict._job import Job, read_job
from slackline.predict._overlapped import overlapped_steps, steps_in_common
from slackline.predict._posted import posted_steps
from slackline.predict._records import RankRecords, read_records
from slackline.predict._run import Group, Link, Run, Step
from slackline.records import Operation, Record
from slackline.sim import Policy

__all__ = ["load_telemetry"]

_SHARED_MEMORY = "shm"
_DEFAULT_PLAN = "ring"


def load_telemetry(directory: Path, report: Callable[[str], None] | None = None) -> Run:
    """Read and calibrate the run whose telemetry is in `directory`.

    `report` receives a sentence for each damaged line; without it such a line raises UsageError.
    Raises UsageError that names the file for records from which no prediction can be made.
    """
    folder = telemetry_of(directory)
    files = files_of(folder)
    if not files:
        raise UsageError(
            f"there is no telemetry in {directory}: it has no rank-*.jsonl; "
            "slackline run --keep DIR and SLACKLINE_TELEMETRY=DIR write telemetry"
        )
    ranks = [read_records(path, report) for path in files]
    _check_complete(directory, ranks)
    job = read_job(directory if folder != directory else directory.parent)
    known: list[Record] = [header for rank in ranks for header in rank.headers]
    alignment = align([*known, *(clock for rank in ranks for clock in rank.clocks)])
    policy: Policy = "overlap"
    steps: tuple[Step, ...]
    if ranks[0].steps:
        numbers = steps_in_common(directory, ranks)
        sizes = ranks[0].steps[numbers[0]].group_bytes
        steps = overlapped_steps(ranks, numbers, alignment)
    else:
        policy = "buckets"
        sizes, steps = posted_steps(str(directory), ranks, alignment)
    every = [operation for rank in ranks for operation in rank.operations]
    faults = Plan() if job is None else _lasting_faults(directory, job)
    one_host = all(operation.rail_names == (_SHARED_MEMORY,) for operation in every)
    run = Run(
        name=str(directory),
        ranks=len(ranks),
        hosts=1 if one_host else _hosts(ranks, every),
        nics=max(1, len(set().union(*(rank.rails for rank in ranks)))),
        groups=_groups(directory, ranks, sizes),
        steps=steps,
        policy=policy,
        link=Link(rate_bps=1, one_way_ns=0 if one_host else _one_way_ns(ranks)),
        faults=faults,
        nominal_bps=None if job is None else job.rate_bps,
        burst_bytes=0 if job is None else _burst_bytes(job, faults),
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


def _burst_bytes(job: Job, faults: Plan) -> int:
    """Return the size of the NICs' token bucket; 0 without a lab that limits rates by buckets.

    The user-space switch of a lab has no bucket: packets to a host leave it one after the other.
    """
    user = job.switch == "user" or beyond_kernel(faults.faults) is not None
    return 0 if user or job.rate_bps is None else burst_bytes(job.rate_bps)


def _check_complete(directory: Path, ranks: Sequence[RankRecords]) -> None:
    """Raise UsageError where a rank's file is missing, or lacks records that others have."""
    found = sorted(rank.number for rank in ranks)
    missing = sorted(set(range(max(found) + 1)) - set(found))
    if missing:
        raise UsageError(f"{directory} has no telemetry of rank {missing[0]}")
    for rank in ranks:
        if bool(rank.steps) != bool(ranks[0].steps):
            one, other = (rank, ranks[0]) if ranks[0].steps else (ranks[0], rank)
            raise UsageError(f"{one.path} has no steps of slackline.overlap, {other.path} has them")
        if rank.lost:
            raise UsageError(f"{rank.path} lacks {rank.lost} operations that the engine lost")


def _groups(
    directory: Path, ranks: Sequence[RankRecords], sizes: Sequence[int]
) -> tuple[Group, ...]:
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
        # With one node for each rank a tree moves the bytes of a mesh.
        name = "mesh" if name == TREE else name
        # All reductions have an aggregator or none has: a simulation has one set of members.
        return usual if "star" in (name, usual) else name or _DEFAULT_PLAN

    return tuple(Group(nbytes=nbytes, plan=plan_of(nbytes)) for nbytes in sizes)


def _hosts(ranks: Sequence[RankRecords], operations: Iterable[Operation]) -> int:
    """Return the number of hosts: each rank has its own unless some share memory."""
    if not any(_SHARED_MEMORY in operation.rail_names for operation in operations):
        return len(ranks)
    return len({rank.headers[0].host for rank in ranks})


def _one_way_ns(ranks: Sequence[RankRecords]) -> int:
    """Return half of the shortest round trip of any probe; 0 without a probe."""
    halves = [clock.error_ns for rank in ranks for clock in rank.clocks]
    halves += [trip // 2 for rank in ranks for trip in rank.round_trips_ns]
    return min(halves, default=0)
