"""The command `slackline doctor`: checks whether a machine or a cluster is fit for a run.

    slackline doctor                check this machine; imports no torch
    slackline doctor --ranks 4      also start 4 ranks and measure bandwidth and latency
    slackline doctor --save host.json
                                    also measure this host's costs for slackline simulate
    torchrun --nnodes 2 --nproc-per-node 1 ... --no-python slackline doctor --cluster
                                    check every host of the job, and the links between its ranks

Exit codes: 0 if nothing must be fixed (there may be notes); 1 if something must be fixed or a
transfer failed; 2 for a wrong argument. Under torchrun the exit code is torchrun's own, which is 1
as well if something must be fixed or a transfer failed.
"""

import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from slackline.cli._doctor import _ranks
from slackline.cli._doctor._finding import Finding, Level
from slackline.cli._doctor._machine import machine
from slackline.cli._doctor._matrix import Matrix, link_findings
from slackline.cli._doctor._matrix import findings as matrix_findings
from slackline.cli._doctor._transfers import Measured
from slackline.cli._job._launch import Job, on_this_machine
from slackline.cli._job._limits import usable_cores
from slackline.cli._job._program import Program
from slackline.env import RAILS
from slackline.errors import SlacklineError, UsageError
from slackline.units import count, parse_duration_ns, show_number

__all__ = ["doctor"]

_MOST_RANKS = 64
_LEAST_NS = 100_000_000
_SHUTDOWN = timedelta(seconds=5)
_PATIENCE = timedelta(seconds=60)
"""The time that the ranks have to start and to end, besides the time of their transfers."""


def doctor(
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks",
            "-n",
            help="Start this many ranks here and measure their links. Default: none.",
        ),
    ] = None,
    rails: Annotated[
        str, typer.Option(help="Measure these kinds of rails (paths to a peer), each by itself.")
    ] = ",".join(RAILS),
    seconds: Annotated[
        str, typer.Option(help="Measure each kind of rail for this long, with a unit.")
    ] = "4s",
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Run as one rank of a job that torchrun has started.")
    ] = False,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Measure this host's costs with two ranks and write them to this file, "
            "which slackline simulate --calibration reads. Default: none."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> int:
    """Check this machine before a run, and with --ranks the links between ranks on it."""
    kinds = rails.split(",")
    budget_ns = _check(ranks, kinds, seconds)
    if cluster:
        if ranks is not None:
            raise UsageError("--cluster and --ranks exclude each other")
        if save is not None:
            raise UsageError("--cluster and --save exclude each other")
        return _one_of_many(budget_ns, as_json=as_json)
    found = machine(ranks or usable_cores())
    if save is not None:
        found += _costs_saved(save)
    matrices: list[Matrix] = []
    meets = all(each.name != "loopback" or each.level is Level.WELL for each in found)
    if ranks is not None and ranks > 1 and meets:
        for kind in kinds:
            outcome = _measure(ranks, kind, budget_ns)
            if isinstance(outcome, Finding):
                found.append(outcome)
            else:
                matrices.append(outcome)
                found += matrix_findings(outcome)
    _print({"this machine": found}, matrices, as_json=as_json)
    return _exit_code(found)


def _costs_saved(path: Path) -> list[Finding]:
    """Save the host's costs, and return a finding for each with its median and 95th percentile."""
    from slackline.cli._doctor._save import save

    costs = save(path)
    return [
        Finding(
            name=f"cost {name}",
            value=f"{show_number(spread.p50)}, {show_number(spread.p95)} at P95",
        )
        for name, spread in costs.spreads().items()
    ]


def _one_of_many(budget_ns: int, *, as_json: bool) -> int:
    """Measure as one rank of torchrun's job and return the exit code; rank 0 prints the results."""
    from torch import distributed as dist

    if not dist.is_torchelastic_launched():
        raise UsageError("--cluster is for ranks that torchrun starts; --ranks starts ranks itself")
    try:
        result = _ranks.run(budget_ns, checks=machine)
    except UsageError:
        raise
    except SlacklineError as error:
        return _unconnected(error, as_json=as_json)
    matrix = _matrix_of(result, "+".join(result["rails"]))
    found = {
        host: [Finding(**{**entry, "level": Level(entry["level"])}) for entry in entries]
        for host, entries in result["checks"].items()
    }
    paths = [
        Finding(name=f"paths of rank {rank}", value=", ".join(names) or "none")
        for rank, names in enumerate(result["paths"])
    ]
    unlike = link_findings(result["hosts"], result["reports"])
    found["between ranks"] = [*paths, *(unlike or matrix_findings(matrix))]
    if result["rank"] == 0:
        _print(found, [matrix], as_json=as_json)
    return _exit_code([each for those in found.values() for each in those])


def _unconnected(error: SlacklineError, *, as_json: bool) -> int:
    """Print why the ranks cannot work together, with the checks of this host; return exit code 1.

    The first rank of each host prints, since no rank has the results of another host.
    """
    if int(os.environ["LOCAL_RANK"]) == 0:
        failed = Finding(
            name="links between ranks", value="do not work", level=Level.MEND, advice=str(error)
        )
        here = machine(int(os.environ["LOCAL_WORLD_SIZE"]))
        _print({"between ranks": [failed], socket.gethostname(): here}, [], as_json=as_json)
    return 1


def _check(ranks: int | None, kinds: Sequence[str], seconds: str) -> int:
    if ranks is not None and not 1 <= ranks <= _MOST_RANKS:
        raise UsageError(f"ranks must be between 1 and {_MOST_RANKS}, not {ranks}")
    for kind in kinds:
        if kind not in RAILS:
            raise UsageError(f"a rail must be one of {', '.join(RAILS)}, not {kind!r}")
    budget_ns = parse_duration_ns(seconds)
    if budget_ns < _LEAST_NS:
        raise UsageError(f"seconds must be at least 100ms, not {seconds}")
    return budget_ns


def _measure(ranks: int, kind: str, budget_ns: int) -> Matrix | Finding:
    """Measure one kind of rail in a job of its own, whose ranks have no other rails.

    Return the measurements, or a finding if the job failed.
    """
    directory = Path(tempfile.mkdtemp(prefix="slackline-doctor-"))
    result = directory / "measured.json"
    settings = {"SLACKLINE_RAILS": kind, "OMP_NUM_THREADS": "1"}
    try:
        job = Job(
            directory,
            ranks=ranks,
            program=Program(_ranks.__file__, (str(result), str(budget_ns))),
            environment={**os.environ, **settings},
            place=on_this_machine(ranks),
            shutdown=_SHUTDOWN,
        )
        try:
            ended = job.wait(_PATIENCE + 2 * timedelta(microseconds=budget_ns // 1000))
        finally:
            job.stop()
            job.wait(_PATIENCE)
        if ended and job.ending().exit_code == 0:
            return _matrix_of(json.loads(result.read_text()), kind)
        return _failed(job, kind, ended=ended)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _failed(job: Job, kind: str, *, ended: bool) -> Finding:
    failures = job.ending().failures
    why = job.last_line(failures[0].rank) if failures else ""
    why = why or ("torchrun failed" if ended else "it did not end in time")
    return Finding(
        name=f"transfers over {kind}",
        value="failed",
        level=Level.MEND,
        advice=f"{len(failures)} of {count(len(job.ranks), 'rank')} failed over {kind}: {why}",
        command=f"SLACKLINE_RAILS={kind} slackline run --keep FOLDER SCRIPT",
    )


def _matrix_of(result: Mapping[str, Any], rails: str) -> Matrix:
    measured = [Measured(**entry) for entry in result["measured"]]
    return Matrix(
        rails=rails,
        hosts=result["hosts"],
        measured={(each.source, each.target): each for each in measured},
    )


def _print(
    found: Mapping[str, Sequence[Finding]], matrices: Sequence[Matrix], *, as_json: bool
) -> None:
    if as_json:
        print(json.dumps(_as_json(found, matrices), indent=2))
        return
    from rich.console import Console

    from slackline.cli._doctor import _show

    console = Console(width=None if sys.stdout.isatty() else 120)
    for where, findings in found.items():
        console.print(_show.findings_table(findings, where))
    for matrix in matrices:
        console.print(_show.matrix_table(matrix))
    console.print(_show.to_mend(found))


def _as_json(
    found: Mapping[str, Sequence[Finding]], matrices: Sequence[Matrix]
) -> dict[str, object]:
    return {
        "findings": {where: [each.as_json() for each in those] for where, those in found.items()},
        "transfers": {
            matrix.rails: [each.as_json() for each in matrix.measured.values()]
            for matrix in matrices
        },
    }


def _exit_code(found: Sequence[Finding]) -> int:
    return 1 if any(each.level is Level.MEND for each in found) else 0
