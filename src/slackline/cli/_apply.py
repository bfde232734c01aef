"""The execution of a measured run with changes, so that promise and measurement can be compared."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from slackline.cli import run
from slackline.cli._job._stage import lab_options
from slackline.errors import UsageError
from slackline.units import format_duration_ns, format_rate, parse_rate

if TYPE_CHECKING:
    from slackline.predict import Change, Job, Latency, Run

__all__ = ["changed_job", "job_of_words", "measure", "words_of"]

_MAIN = "import sys; from slackline.cli import main; sys.exit(main())"
_RANKS = 4
"""The default of `slackline run --ranks`."""


def measure(job: "Job", name: str) -> "Run":
    """Run a job, and return the run that its telemetry describes.

    The output of the job goes to standard error. Raises UsageError that has `name` if the job
    fails.
    """
    from slackline.predict import load

    with tempfile.TemporaryDirectory(prefix="slackline-what-if-") as folder:
        keep = Path(folder, "kept")
        ended = subprocess.run(
            [sys.executable, "-c", _MAIN, "run", "--keep", str(keep), *words_of(job)],
            cwd=job.folder,
            env={**os.environ, **job.settings},
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            check=False,
        )
        if ended.returncode:
            raise UsageError(f"the job with {name!r} ended with code {ended.returncode}")
        return load(keep)


def job_of_words(words: Sequence[str]) -> "Job":
    """Return the job that these arguments of `slackline run` describe, without running it.

    Raises UsageError for a job of several machines, and typer's error for a wrong argument.
    """
    from slackline.cli._job._kept_job import job_of

    command = typer.Typer()
    command.command(context_settings=run.SETTINGS)(run.run)
    given = typer.main.get_command(command).make_context("slackline run", list(words)).params
    if given["hosts"] is not None and not given["lab"]:
        raise UsageError(f"a job of several machines cannot be repeated: --hosts {given['hosts']}")
    options = lab_options(
        lab=given["lab"],
        ranks=given["ranks"],
        hosts=given["hosts"],
        nics=given["nics"],
        rate=None if given["rate"] is None else parse_rate(given["rate"]),
        switch=given["switch"],
    )
    ranks = options.hosts if options is not None else given["ranks"] or _RANKS
    asked = {
        f"SLACKLINE_{'AS' if name == 'serve' else name.upper()}": given[name]
        for name in ("timeout", "nic", "nic_check", "circuit", "serve")
        if given[name] is not None
    }
    faults = given["faults"] or []
    environment = {**os.environ, **asked}
    return job_of(given["script"], given["arguments"] or [], options, ranks, faults, environment)


def words_of(job: "Job") -> list[str]:
    """Return the arguments of `slackline run` for a job."""
    words = ["--ranks", str(job.ranks)]
    if job.lab:
        words += ["--lab", "--nics", str(job.nics)]
        words += ["--rate", format_rate(job.rate_bps)] if job.rate_bps is not None else []
        words += ["--switch", job.switch] if job.switch is not None else []
    for fault in job.faults:
        words += ["--fault", fault]
    return [*words, job.script, *job.arguments]


def changed_job(measured: "Run", job: "Job", changes: "Sequence[Change]") -> "Job":
    """Return the job with changes; raise UsageError for a change that a command cannot make."""
    for change in changes:
        job = _changed(measured, job, change)
    return job


def _changed(measured: "Run", job: "Job", change: "Change") -> "Job":
    from slackline.predict import (
        FaultChange,
        Hosts,
        Latency,
        Nics,
        PlanChange,
        Ranks,
        Rate,
    )

    match change:
        case PlanChange():
            return replace(job, settings={**job.settings, "SLACKLINE_PLAN": change.name})
        case FaultChange():
            return replace(job, faults=(*job.faults, str(change)))
        case Ranks():
            return replace(job, ranks=change.count)
        case Nics() | Rate() | Hosts() | Latency() if not job.lab:
            raise UsageError(f"--apply cannot make the change {str(change)!r} outside of a lab")
        case Nics():
            return replace(job, nics=change.count)
        case Rate():
            return replace(job, rate_bps=change.rate_bps)
        case Hosts():
            return replace(job, ranks=change.count)
        case Latency():
            return replace(job, faults=(*job.faults, *_delays(measured, job, change)))
        case _:
            raise UsageError(
                f"--apply cannot make the change {str(change)!r}: the script itself chooses "
                "groups, schedule and computation"
            )


def _delays(measured: "Run", job: "Job", change: "Latency") -> list[str]:
    """Return faults that raise the latency between any two hosts to that of the change.

    A path crosses two NICs, so that each of them takes half of the additional delay.
    """
    more_ns = (change.one_way_ns - measured.link.one_way_ns) // 2
    if more_ns < 1:
        raise UsageError(
            f"--apply cannot make the change {str(change)!r}: a message in this lab takes "
            f"{format_duration_ns(measured.link.one_way_ns)} already"
        )
    delay = format_duration_ns(more_ns)
    return [
        f"nic {host}.{nic} delay {delay}" for host in range(job.ranks) for nic in range(job.nics)
    ]
