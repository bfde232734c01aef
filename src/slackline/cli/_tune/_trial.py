"""A trial: the script with some settings, ended after a number of steps.

A trial ends its job as torchrun ends one: by SIGTERM to every rank, and SIGKILL five seconds later.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from slackline.cli._job._config import variable_of
from slackline.cli._job._failed_job import explain
from slackline.cli._job._launch import Ending, Job, thread_settings
from slackline.cli._job._program import Program
from slackline.cli._job._stage import open_stage
from slackline.cli._tune._candidates import Candidate
from slackline.cli._tune._steps import WARM_UP, Measure, TrialSteps
from slackline.env import Environment
from slackline.errors import TimeoutError
from slackline.faults import parse_all
from slackline.lab import LabOptions
from slackline.units import count as counted
from slackline.units import show_time
from slackline.views.terminal import Screen

__all__ = ["InterruptedSearchError", "Script", "Trial", "run_trial"]

_TICK = timedelta(milliseconds=100)
_SHUTDOWN = timedelta(seconds=5)
_PATIENCE = timedelta(minutes=1)
"""The time that a trial's processes have to end; torchrun needs five seconds at most."""


class InterruptedSearchError(Exception):
    """The end of a search by a signal; the processes of the trial have ended."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """The job that is tuned: a program, its ranks and its network."""

    program: Program
    ranks: int
    lab: LabOptions | None
    faults: Sequence[str]
    """The faults that every trial inflicts, in the grammar of slackline.faults."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The outcome of one trial."""

    candidate: Candidate
    steps: TrialSteps
    measure: Measure | None
    """The way in which the steps were measured; None if the script took no steps."""
    count: int
    """The number of steps that every rank has taken."""
    step_ns: float | None
    """The median duration of the measured steps; None if the trial ended before all of them."""
    wall_s: float
    """The duration of the trial in seconds."""
    reason: str = ""
    """The reason why the trial has no result, as a clause."""
    exit_code: int | None = None
    """The exit code of a job that ended by itself; None for a job that the trial ended."""


def run_trial(
    script: Script,
    candidate: Candidate,
    *,
    directory: Path,
    steps: int,
    limit_s: float,
    screen: Screen,
    received: Sequence[int],
    measure: Measure | None = None,
    first: bool = False,
) -> Trial:
    """Run the script with a candidate's settings until every rank has taken its steps.

    The trial ends after the warm-up and `steps` more steps, or after `limit_s` seconds. `measure`
    is the way in which steps are measured; None finds it. The `first` trial also waits for the end
    of the library's own trial of group sizes, if there is one, and for `steps` steps after it, and
    explains a failure of the script on the screen. The job's files are written to `directory`.

    Raises InterruptedSearchError when `received` has a signal, and TimeoutError if a process of the
    job cannot be ended.
    """
    telemetry = directory / "telemetry"
    telemetry.mkdir(parents=True)
    chosen = {variable_of(name): value for name, value in candidate.settings.items()}
    watched = TrialSteps(telemetry, range(script.ranks))
    began_s = time.monotonic()
    with open_stage(script.lab, parse_all(script.faults), script.ranks) as stage:
        job = Job(
            directory,
            ranks=script.ranks,
            program=script.program,
            environment={
                **os.environ,
                **stage.settings,
                **thread_settings(os.environ, script.ranks),
                **chosen,
                "SLACKLINE_TELEMETRY": str(telemetry),
            },
            place=stage.place,
            shutdown=_SHUTDOWN,
        )
        ended = False
        needed = WARM_UP + steps
        waits = first
        try:
            while not ended and not received:
                ended = job.wait(_TICK)
                watched.update()
                if said := stage.watch(job, watched.opened(), time.monotonic_ns()):
                    screen.note(said)
                found = measure or watched.measure()
                count = 0 if found is None else watched.count(found)
                screen.progress(f"{candidate}: {count} of {needed} steps")
                if waits and count and not (watched.has_trial() and not watched.tried()):
                    waits = False
                    if watched.has_trial():
                        needed = max(needed, count + steps)
                if count >= needed and not waits:
                    break
                if time.monotonic() - began_s > limit_s:
                    break
        finally:
            job.stop()
            if not job.wait(_PATIENCE):
                raise TimeoutError(f"a process of {script.program} could not be ended")
        if received:
            raise InterruptedSearchError
        wall_s = time.monotonic() - began_s
        reason, exit_code = "", None
        if count < WARM_UP + steps:
            reason = f"{count} of {WARM_UP + steps} steps in {show_time(1e9 * wall_s)}"
            if ended:
                ending = job.ending()
                exit_code = ending.exit_code
                reason = _end(job, ending, count)
                if first and exit_code:
                    explain(job, ending, screen)
        else:
            reason = _without_effect(candidate, watched) or "; ".join(watched.problems()[:1])
    return Trial(
        candidate=candidate,
        steps=watched,
        measure=found,
        count=count,
        step_ns=None if found is None or reason else watched.step_ns(found, steps),
        wall_s=wall_s,
        reason=reason,
        exit_code=exit_code,
    )


def _end(job: Job, ending: Ending, count: int) -> str:
    """Return a clause for the end of a job that ended by itself before its steps were taken."""
    if not ending.exit_code:
        return f"the script ended after {counted(count, 'step')}"
    if not ending.failures:
        return "torchrun failed"
    cause = ending.failures[0]
    told = cause.error or job.last_line(cause.rank)
    told = f": {told}" if told and told not in cause.reason else ""
    return f"rank {cause.rank} {cause.reason}{told}"


def _without_effect(candidate: Candidate, steps: TrialSteps) -> str:
    """Return a clause if a setting of the candidate had no effect, since the script sets it."""
    used = steps.settings()
    for name, value in candidate.settings.items():
        variable = variable_of(name)
        asked = Environment.read({variable: value})
        if name not in used or asked != Environment.read({variable: used[name].value}):
            took = f"{used[name].value!r}" if name in used else "no value"
            return f"the script itself sets {name}: {took} in place of {value!r}"
    return ""
