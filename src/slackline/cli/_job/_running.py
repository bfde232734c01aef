"""A job from its start to its end, as `slackline run` was asked for it."""

import os
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from slackline.cli._job._announced import announced
from slackline.cli._job._config import Config
from slackline.cli._job._failed_job import explain
from slackline.cli._job._following import Ender, follow, format_time
from slackline.cli._job._interrupts import collected_signals
from slackline.cli._job._key import job_key
from slackline.cli._job._launch import Ending, Job, Place, ranks_named, thread_settings
from slackline.cli._job._limits import usable_cores
from slackline.cli._job._output import writing_to
from slackline.cli._job._program import Program
from slackline.cli._job._shown import FIRST, Shown
from slackline.cli._job._stage import Stage, open_stage
from slackline.cli._job._wired_bits import same_bits
from slackline.cli._job._wired_node import MORE_HOSTS, WiredNode, wired_node
from slackline.cli._serving import Served
from slackline.env import Environment
from slackline.faults import Plan
from slackline.lab import LabOptions
from slackline.units import count
from slackline.views.terminal import PlainScreen, Report, Screen, open_screen

__all__ = ["Request", "run_job"]

_PATIENCE = timedelta(minutes=1)
"""The time that torchrun itself has to end after its ranks if the command fails."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The job that the options of a command describe."""

    program: Program
    ranks: int
    """The number of ranks on this machine."""
    place: Place
    lab: LabOptions | None
    chosen: Environment
    """The settings of the ranks' engines."""
    variables: Mapping[str, str]
    """The variables that options and the file of settings give to the ranks."""
    config: Config
    faults: Sequence[str]
    """The faults as the command line has them."""
    plan: Plan
    """The same faults."""
    fault_wait_ns: int
    grace: timedelta
    """The time that ranks have to end after SIGTERM."""
    keep: Path | None
    output: str
    """The ranks whose output is shown, as --output names them."""
    announcement: str = ""
    """A line about the machines of the job; empty for one machine."""
    passed: tuple[str, ...] = ()
    """Options for torchrun."""
    node: bool = False
    """Whether an aggregation node on a wire of the lab adds for the ranks."""
    compare: bool = True
    """Whether a job with a node runs again in software, for a comparison of the states."""
    silent_as: str = ""
    """The name of a command that measures: it tells nothing of its own about a job that goes well,
    and its ranks write telemetry only if the environment asks for it."""

    @property
    def world(self) -> int:
        """The number of ranks on all machines."""
        return self.ranks if self.place.world is None else self.place.world

    @property
    def alone(self) -> bool:
        """Whether all ranks run on this machine."""
        return self.place.world is None


def run_job(asked: Request, serving: AbstractContextManager[Served]) -> int:
    """Run the job, show its output and its cost, and return the command's exit code.

    `serving` opens the page and the metrics of the job.
    """
    with (
        collected_signals() as received,  # the first: signals are collected until all is closed
        serving as servers,
        _silent(asked.silent_as) if asked.silent_as else open_screen() as screen,
        open_stage(
            asked.lab,
            asked.plan,
            asked.world,
            asked.place,
            no_group_ns=asked.fault_wait_ns,
            more_hosts=MORE_HOSTS if asked.node else 0,
        ) as stage,
        ExitStack() as while_running,
    ):
        _check_devices(asked.chosen, screen)
        directory, telemetry = _directories(asked)
        environment = {**os.environ, **stage.settings, **asked.variables}
        if not asked.silent_as:
            environment["SLACKLINE_TELEMETRY"] = str(telemetry)
            environment["SLACKLINE_LAUNCHER"] = "run"
        environment["SLACKLINE_REPORTS"] = str(telemetry)  # they are kept with the telemetry
        environment |= while_running.enter_context(job_key(asked.chosen, alone=asked.alone))
        if not asked.silent_as:
            _announce(asked, screen)
        node = None
        if asked.node:
            assert stage.lab is not None
            screen.note("an Ethernet node is simulated; its first use takes a minute to compile")
            key = environment.get("SLACKLINE_KEY")
            opened = wired_node(stage.lab, asked.ranks, key, received, compare=asked.compare)
            node = while_running.enter_context(opened)
            environment |= node.settings
        environment |= thread_settings(os.environ, asked.ranks)
        for said in servers.start(telemetry):
            screen.note(said)
        announcing = announced(directory, str(asked.program), asked.world, screen.note)
        while_running.enter_context(announcing)
        job = _start(asked, stage, directory, environment)
        report = Report(telemetry, ranks=asked.ranks, first=stage.place.first)
        shown = Shown(asked.output, job.ranks, job.output)
        try:
            follow(job, stage, report, screen, Ender(job, asked.grace, received), shown)
        finally:
            job.stop()
            job.wait(asked.grace + _PATIENCE)
        ending = job.ending()
        code = 128 + received[0] if received else ending.exit_code
        wrong = "" if node is None else _end_node(node, screen)
        if not asked.silent_as:
            _tell_cost(report, screen, failed=bool(code))
        _tell_problems(asked, stage, job, ending, screen)
        if received:
            screen.note(f"ended by {signal.Signals(received[0]).name}; all ranks have left")
        elif code:
            explain(job, ending, screen, report.job, shown=shown.ranks)
        elif wrong:
            code = 1
            screen.note(wrong)
        elif node is not None and asked.compare:
            code = _compare(asked, stage, directory, environment | node.software, screen, received)
        if servers.error:
            screen.note(servers.error)
        saved = asked.keep is not None or (code and not received) or screen.lost
        if saved:
            screen.note(f"output and telemetry of all ranks: {directory}")
    if not saved:
        shutil.rmtree(directory, ignore_errors=True)
    return code


def _start(asked: Request, stage: Stage, directory: Path, environment: Mapping[str, str]) -> Job:
    """Start the job's ranks, with their files in `directory`."""
    return Job(
        directory,
        ranks=asked.ranks,
        program=asked.program,
        environment=environment,
        place=stage.place,
        shutdown=asked.grace,
        options=asked.passed,
    )


def _end_node(node: WiredNode, screen: Screen) -> str:
    """End the node, tell what has passed it, and return what was wrong with it."""
    passed = node.end()
    screen.note(str(passed))
    if not passed.frames:
        return "no frame has passed the Ethernet node: the ranks ran without it"
    return "" if passed.right else "the Ethernet node's sums have other bits than software's"


def _compare(
    asked: Request,
    stage: Stage,
    directory: Path,
    environment: Mapping[str, str],
    screen: Screen,
    received: Sequence[int],
) -> int:
    """Run the job again with its sums in software, and compare the states at the end of both runs.

    Returns the exit code: 1 if the states differ.
    """
    again = directory / "software"
    telemetry = again / "telemetry"
    telemetry.mkdir(parents=True, exist_ok=True)
    folders = {"SLACKLINE_TELEMETRY": str(telemetry), "SLACKLINE_REPORTS": str(telemetry)}
    screen.note(
        "the same job again with its sums in software, its output not shown (--no-compare leaves "
        "it out)"
    )
    job = _start(asked, stage, again, {**environment, **folders})
    report = Report(telemetry, ranks=asked.ranks)
    try:
        nothing = Shown(FIRST, range(0), job.output)
        follow(job, stage, report, screen, Ender(job, asked.grace, received), nothing)
    finally:
        job.stop()
        job.wait(asked.grace + _PATIENCE)
    ending = job.ending()
    if received:
        screen.note(f"ended by {signal.Signals(received[0]).name}; all ranks have left")
        return 128 + received[0]
    if ending.exit_code:
        explain(job, ending, screen, report.job)
        return ending.exit_code
    return 0 if same_bits(directory / "telemetry", telemetry, screen.note) else 1


def _silent(command: str) -> Screen:
    """Return a display that shows the ranks' output and errors alone, without progress."""
    return PlainScreen(timedelta.max, command=command)


def _check_devices(chosen: Environment, screen: Screen) -> None:
    """Open the ranks' circuits once, so that a wrong value is not reported by every rank."""
    if chosen.nic is None or chosen.nic == "software":
        return
    from slackline.nic.offload import Devices

    if chosen.nic == "circuit" or chosen.nic_check:
        screen.note("at its first use on a machine the circuit is compiled, for half a minute")
    Devices(chosen.nic, chosen.nic_check, chosen.circuit or "")


def _directories(asked: Request) -> tuple[Path, Path]:
    """Make the job's directory and that of its telemetry, and keep the command line."""
    with writing_to(asked.keep or Path(tempfile.gettempdir())):
        directory = asked.keep or Path(tempfile.mkdtemp(prefix="slackline-run-"))
        telemetry = directory / "telemetry"
        telemetry.mkdir(parents=True, exist_ok=True)
    if asked.keep is not None and asked.alone and asked.program.python:
        from slackline.cli._job._kept_job import job_of
        from slackline.predict import write_job

        variables = {**os.environ, **asked.variables}
        kept = job_of(asked.program, asked.lab, asked.ranks, list(asked.faults), variables)
        with writing_to(asked.keep):
            write_job(asked.keep, kept)
    return directory, telemetry


def _announce(asked: Request, screen: Screen) -> None:
    """Say what is about to run."""
    for said in asked.config.replaced(os.environ, asked.variables):
        screen.note(said)
    cores = usable_cores()
    ranks = count(asked.ranks, "rank")
    screen.note(f"{ranks} of {asked.program} on {cores} cores")
    if asked.announcement:
        screen.note(asked.announcement)
    if thread_settings(os.environ, asked.ranks) and asked.ranks > cores:
        screen.note("OMP_NUM_THREADS=1 for each rank, as there are more ranks than cores")


def _tell_cost(report: Report, screen: Screen, *, failed: bool) -> None:
    """Show the tables of the run; a job that has failed may have none."""
    tables = [each for each in (report.table(), report.pipelines()) if each is not None]
    for table in tables:
        screen.table(table)
    if not tables and not failed:
        screen.note("no steps in the telemetry: no rank has called an optimizer over slackline")
    if report.job.ranks:
        screen.table(report.summary())
    for problem in report.problems():
        screen.note(problem)


def _tell_problems(asked: Request, stage: Stage, job: Job, ending: Ending, screen: Screen) -> None:
    """Say what was not as asked: faults that did not occur, killed ranks, missing output."""
    if said := stage.unused():
        screen.note(said)
    if ending.cut_off:
        screen.note(
            f"{ranks_named(ending.cut_off)} had not ended {format_time(asked.grace)} after SIGTERM "
            "and had to be killed (--shutdown-timeout)"
        )
    if job.disk_error:
        screen.note(f"output or telemetry is missing in {job.directory}: {job.disk_error}")
