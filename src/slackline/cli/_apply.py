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
from slackline.cli._job._program import Program
from slackline.cli._job._stage import lab_options
from slackline.cli._job._torchrun import read_torchrun, torchrun_words
from slackline.errors import UsageError
from slackline.units import format_duration_ns, format_rate

if TYPE_CHECKING:
    from slackline.predict import Change, Job, Latency, PipelineRun, PlanChange, Run, Schedule

__all__ = ["changed_job", "job_of_words", "measure", "words_of"]

_MAIN = "import sys; from slackline.cli import main; sys.exit(main())"
_RANKS = 4
"""The default of `slackline run --ranks`."""


def measure(job: "Job", changes: "Sequence[Change]") -> "Run | PipelineRun":
    """Run a job with changes, and return the run that its telemetry describes.

    The output of the job goes to standard error. Raises UsageError that names the changes if the
    job fails, and if its script itself chose another schedule.
    """
    from slackline.predict import PipelineRun, has_pipeline, load, load_pipeline

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
        name = "; ".join(map(str, changes))
        if ended.returncode:
            raise UsageError(f"the job with {name!r} ended with code {ended.returncode}")
        found = load_pipeline(keep) if has_pipeline(keep) else load(keep)
    if isinstance(found, PipelineRun):
        for wanted, value in _settings_of(changes).items():
            used = found.settings.get(wanted)
            if used is None or used.value != value:
                took = "no value" if used is None else repr(used.value)
                raise UsageError(
                    f"the job with {name!r} used {took} for {wanted}: its script chooses it"
                )
    return found


def _settings_of(changes: "Sequence[Change]") -> dict[str, str]:
    """Return the settings, by name, that changes of the schedule give a pipeline."""
    from slackline.predict import Schedule

    found: dict[str, str] = {}
    for change in changes:
        if isinstance(change, Schedule):
            found["schedule"] = change.name
            if change.memory is not None:
                found["schedule_memory"] = str(change.memory)
    return found


def job_of_words(words: Sequence[str]) -> "Job":
    """Return the job that these arguments of `slackline run` describe, without running it.

    Raises UsageError for a job of several machines, and typer's error for a wrong argument.
    """
    from slackline.cli._job._kept_job import job_of

    command = typer.Typer()
    command.command(context_settings=run.SETTINGS, cls=run.TorchrunCommand)(run.run)
    context = typer.main.get_command(command).make_context("slackline run", list(words))
    torchrun, given = read_torchrun(torchrun_words(context)), context.params
    if given["script"] is None:
        raise UsageError("the words of slackline run name no program")
    if torchrun.nodes > 1:
        raise UsageError(f"a job of several machines cannot be repeated: --nnodes {torchrun.nodes}")
    if given["hosts"] is not None and not given["lab"]:
        raise UsageError(f"a job of several machines cannot be repeated: --hosts {given['hosts']}")
    options = lab_options(
        lab=given["lab"],
        ranks=given["ranks"] if torchrun.ranks is None else torchrun.ranks,
        hosts=given["hosts"],
        nics=given["nics"],
        rate=given["rate"],
        switch=given["switch"],
    )
    ranks = options.hosts if options is not None else torchrun.ranks or given["ranks"] or _RANKS
    asked = {
        f"SLACKLINE_{'AS' if name == 'serve' else name.upper()}": given[name]
        for name in ("timeout", "nic", "nic_check", "circuit", "serve")
        if given[name] is not None
    }
    faults = given["faults"] or []
    environment = {**os.environ, **asked}
    program = Program.of_words(given["script"], given["arguments"], module=given["module"])
    return job_of(program, options, ranks, faults, environment)


def words_of(job: "Job") -> list[str]:
    """Return the arguments of `slackline run` for a job."""
    words = ["--ranks", str(job.ranks)]
    if job.lab:
        words += ["--lab", "--nics", str(job.nics)]
        words += ["--rate", format_rate(job.rate_bps)] if job.rate_bps is not None else []
        words += ["--switch", job.switch] if job.switch is not None else []
    for fault in job.faults:
        words += ["--fault", fault]
    return [*words, *Program(job.script, job.arguments, job.module).words]


def changed_job(measured: "Run | PipelineRun", job: "Job", changes: "Sequence[Change]") -> "Job":
    """Return the job with changes; raise UsageError for a change that a command cannot make."""
    for change in changes:
        job = _changed(measured, job, change)
    return job


def _changed(measured: "Run | PipelineRun", job: "Job", change: "Change") -> "Job":
    from slackline.predict import (
        FaultChange,
        Hosts,
        Latency,
        Nics,
        PipelineRun,
        PlanChange,
        Ranks,
        Rate,
        Schedule,
    )

    match change:
        case Schedule() if isinstance(measured, PipelineRun):
            return _rescheduled(measured, job, change)
        case PlanChange():
            _check_plan(job, change)
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
            if isinstance(measured, PipelineRun):
                one_way_ns = measured.delay_ns
            else:
                one_way_ns = measured.link.one_way_ns
            return replace(job, faults=(*job.faults, *_delays(one_way_ns, job, change)))
        case _:
            parts = "computation"
            if not isinstance(measured, PipelineRun):
                parts = f"groups, schedule and {parts}"
            raise UsageError(
                f"--apply cannot make the change {str(change)!r}: the script itself chooses {parts}"
            )


def _check_plan(job: "Job", change: "PlanChange") -> None:
    """Raise UsageError for the plan "star" if the job has no aggregation node to run it."""
    name = "SLACKLINE_AGGREGATOR"
    if change.name == "star" and not job.settings.get(name, os.environ.get(name)):
        raise UsageError(
            f"--apply cannot make the change {str(change)!r}: the run has no aggregation node; "
            f"start one with slackline aggregate, and set {name} to its address"
        )


def _rescheduled(measured: "PipelineRun", job: "Job", change: "Schedule") -> "Job":
    """Return the job with another schedule, and other memory if the change has some.

    Raises UsageError if the measured run's script has chosen them by arguments.
    """
    settings = _settings_of([change])
    for name in settings:
        used = measured.settings.get(name)
        if used is not None and used.origin == "argument":
            raise UsageError(
                f"--apply cannot make the change {str(change)!r}: the script itself chooses "
                f"{name}, {used.value!r}"
            )
    variables = {f"SLACKLINE_{name.upper()}": value for name, value in settings.items()}
    return replace(job, settings={**job.settings, **variables})


def _delays(one_way_ns: int, job: "Job", change: "Latency") -> list[str]:
    """Return faults that raise the latency between any two hosts to that of the change.

    `one_way_ns` is the measured latency. A path crosses two NICs, so that each of them takes half
    of the additional delay.
    """
    more_ns = (change.one_way_ns - one_way_ns) // 2
    if more_ns < 1:
        raise UsageError(
            f"--apply cannot make the change {str(change)!r}: a message in this lab takes "
            f"{format_duration_ns(one_way_ns)} already"
        )
    delay = format_duration_ns(more_ns)
    return [
        f"nic {host}.{nic} delay {delay}" for host in range(job.ranks) for nic in range(job.nics)
    ]
