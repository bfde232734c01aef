"""The command `slackline run`: run a program on several ranks; print the cost of communication.

The ranks run on this machine, on the hosts of a lab, or on several machines with the same command
on each. torchrun starts and watches the ranks. Rank 0's output is shown as it is written. The
output of the other ranks is stored, and shown if they fail.

Exit codes: 0; 2 for a wrong argument; a failed rank's own code; 1 for a rank that a signal killed;
128 + n if signal n ended the command itself (130 for Ctrl-C).
"""

import os
import shutil
import signal
import tempfile
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from slackline.cli._job._announced import announced
from slackline.cli._job._config import NO_CONFIG, read_config
from slackline.cli._job._failed_job import explain
from slackline.cli._job._following import Ender, follow, format_time, shutdown_time
from slackline.cli._job._hosts import DEFAULT_PORT, Hosts, find_hosts
from slackline.cli._job._interrupts import collected_signals
from slackline.cli._job._key import job_key
from slackline.cli._job._launch import (
    Job,
    on_this_machine,
    ranks_named,
    thread_settings,
)
from slackline.cli._job._limits import usable_cores
from slackline.cli._job._options import (
    SETTINGS,
    Arguments,
    LabFlag,
    ModuleFlag,
    Nics,
    Rate,
    Switch,
)
from slackline.cli._job._output import writing_to
from slackline.cli._job._program import Program
from slackline.cli._job._stage import NO_GROUP_NS, lab_options, open_stage
from slackline.cli._serving import (
    MetricsFlag,
    MetricsListen,
    MetricsToken,
    PageFlag,
    PageListen,
    served,
)
from slackline.env import Environment
from slackline.errors import UsageError
from slackline.faults import Plan, parse_all
from slackline.units import parse_duration_ns, parse_rate
from slackline.views.terminal import Report, open_screen

__all__ = ["SETTINGS", "run"]

_MOST_RANKS = 1024
_PATIENCE = timedelta(minutes=1)
"""The time that torchrun itself has to end after its ranks if the command fails."""


def run(
    script: Annotated[
        Path,
        typer.Argument(
            metavar="SCRIPT", help="Run this script, or with -m this module, on each rank."
        ),
    ],
    arguments: Arguments = None,
    module: ModuleFlag = False,
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", "-n", help="Start this many ranks on each machine. Default: 4."),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            help="Fail an operation that takes longer than this: 30s. Default: the process group's."
        ),
    ] = None,
    nic: Annotated[
        str | None,
        typer.Option(
            help="Reduce for each rank by software, twin (circuit model) or circuit (simulated). "
            "Default: SLACKLINE_NIC, else software."
        ),
    ] = None,
    nic_check: Annotated[
        str | None,
        typer.Option(
            metavar="K",
            help="Check every K-th operation of a twin on the simulated circuit; 0 checks none. "
            "Default: SLACKLINE_NIC_CHECK, else 1000 if the circuit is compiled already, else 0.",
        ),
    ] = None,
    circuit: Annotated[
        str | None,
        typer.Option(metavar="SIZES", help="Size the circuit or its twin: lanes=4,slots=4."),
    ] = None,
    serve: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="BACKEND",
            help="Serve the CPU groups that SCRIPT asks of this backend: gloo. Default: none.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Take settings from this TOML file, for example one of slackline tune. Options "
            "win over the file, the file over variables. Default: none.",
        ),
    ] = None,
    shutdown_timeout: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Give the ranks this long to end after SIGTERM, before they are killed: 5min. "
            "Default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30s, as torchrun's.",
        ),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            help="Keep every rank's output and telemetry in this empty or new directory. "
            "Default: keep them only if the job fails."
        ),
    ] = None,
    faults: Annotated[
        list[str] | None,
        typer.Option(
            "--fault",
            help='Inject this fault: "rank 2 stop from 5s for 1s". May be repeated. Default: none.',
        ),
    ] = None,
    fault_wait: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Count the faults' times from this long after the ranks' start if a rank has "
            "opened no group of slackline by then. Default: 30s.",
        ),
    ] = None,
    page: PageFlag = False,
    page_listen: PageListen = None,
    metrics: MetricsFlag = False,
    metrics_listen: MetricsListen = None,
    metrics_token: MetricsToken = None,
    lab: LabFlag = False,
    hosts: Annotated[
        str | None,
        typer.Option(
            metavar="A,B|N",
            help="Run on these machines, with this command on each: a,b,c. "
            "Default: this machine. With --lab: on so many hosts, one rank each. Default: 4.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="Keep the store of a job of several machines at this port of the first one. "
            "Default: 29500."
        ),
    ] = None,
    nics: Nics = None,
    rate: Rate = None,
    switch: Switch = None,
) -> int:
    """Run SCRIPT on several ranks of one or more machines and print what communication cost.

    Options of slackline precede the script; options of the script follow it.
    """
    given = NO_CONFIG if config is None else read_config(config)
    if ranks is None and (hosts is None or not lab):
        ranks = given.ranks
    options = lab_options(
        lab=lab,
        ranks=ranks,
        hosts=hosts,
        nics=nics,
        rate=None if rate is None else parse_rate(rate),
        switch=switch,
    )
    ranks = options.hosts if options is not None else 4 if ranks is None else ranks
    machines = _machines(hosts if options is None else None, port)
    world = ranks if machines is None else ranks * len(machines.names)
    program = Program.of_words(script, arguments, module=module)
    _check(program, world, keep)
    engine = {"timeout": timeout, "nic": nic, "nic_check": nic_check, "circuit": circuit}
    asked = {**given.variables, **_asked(**engine, **{"as": serve})}
    chosen = Environment.read({**os.environ, **asked})
    if nic_check is not None and chosen.nic != "twin":
        raise UsageError(
            f"--nic-check {nic_check}: a check needs a twin (a model in Python) as NIC; "
            "add --nic twin"
        )
    plan = parse_all(faults or ())
    timed = plan if lab else plan.of_ranks  # the engine itself times faults of links and NICs
    fault_wait_ns = _fault_wait_ns(fault_wait, timed)
    place = on_this_machine() if machines is None else machines.place(ranks)
    grace = shutdown_time(shutdown_timeout, os.environ)
    if place.first != 0:  # The machine of rank 0 serves the page.
        page, page_listen = False, None
    with (
        collected_signals() as received,  # the first: signals are collected until all is closed
        served(
            page=page,
            page_listen=page_listen,
            metrics=metrics,
            metrics_listen=metrics_listen,
            metrics_token=metrics_token,
        ) as servers,
        open_screen() as screen,
        open_stage(options, plan, world, place, no_group_ns=fault_wait_ns) as stage,
        ExitStack() as while_running,
    ):
        if chosen.nic is not None and chosen.nic != "software":
            from slackline.nic.offload import Devices

            if chosen.nic == "circuit" or chosen.nic_check:
                screen.note(
                    "at its first use on a machine the circuit is compiled, for half a minute"
                )
            # Check the devices here, so that a wrong value is reported once and not by every rank.
            Devices(chosen.nic, chosen.nic_check, chosen.circuit or "")
        with writing_to(keep or Path(tempfile.gettempdir())):
            directory = keep or Path(tempfile.mkdtemp(prefix="slackline-run-"))
            telemetry = directory / "telemetry"
            telemetry.mkdir(parents=True, exist_ok=True)
        if keep is not None and machines is None:
            from slackline.cli._job._kept_job import job_of
            from slackline.predict import write_job

            variables = {**os.environ, **asked}
            kept = job_of(program, options, ranks, faults or [], variables)
            with writing_to(keep):
                write_job(keep, kept)
        settings = {**stage.settings, **asked, "SLACKLINE_TELEMETRY": str(telemetry)}
        settings["SLACKLINE_REPORTS"] = str(telemetry)  # they are kept with the telemetry
        settings |= while_running.enter_context(job_key(chosen, alone=machines is None))
        cores = usable_cores()
        for said in given.replaced(os.environ, asked):
            screen.note(said)
        screen.note(f"{ranks} {'rank' if ranks == 1 else 'ranks'} of {program} on {cores} cores")
        if machines is not None:
            screen.note(machines.announcement(ranks))
        threads = thread_settings(os.environ, ranks)
        settings |= threads
        if threads and ranks > cores:
            screen.note("OMP_NUM_THREADS=1 for each rank, as there are more ranks than cores")
        for said in servers.start(telemetry):
            screen.note(said)
        while_running.enter_context(announced(directory, str(program), world, screen.note))
        job = Job(
            directory,
            ranks=ranks,
            program=program,
            environment={**os.environ, **settings},
            place=stage.place,
            shutdown=grace,
        )
        report = Report(telemetry, ranks=ranks, first=stage.place.first)
        try:
            follow(job, stage, report, screen, Ender(job, grace, received))
        finally:
            job.stop()
            job.wait(grace + _PATIENCE)
        ending = job.ending()
        code = 128 + received[0] if received else ending.exit_code
        tables = [each for each in (report.table(), report.pipelines()) if each is not None]
        for table in tables:
            screen.table(table)
        if not tables and not code:
            screen.note("no steps in the telemetry: no rank has called an optimizer over slackline")
        if report.job.ranks:
            screen.table(report.summary())
        for problem in report.problems():
            screen.note(problem)
        if said := stage.unused():
            screen.note(said)
        if ending.cut_off:
            screen.note(
                f"{ranks_named(ending.cut_off)} had not ended {format_time(grace)} after SIGTERM "
                "and had to be killed (--shutdown-timeout)"
            )
        if job.disk_error:
            screen.note(f"output or telemetry is missing in {directory}: {job.disk_error}")
        if received:
            screen.note(f"ended by {signal.Signals(received[0]).name}; all ranks have left")
        elif code:
            explain(job, ending, screen, report.job, shown=True)
        if servers.error:
            screen.note(servers.error)
        saved = keep is not None or (code and not received) or screen.lost
        if saved:
            screen.note(f"output and telemetry of all ranks: {directory}")
    if not saved:
        shutil.rmtree(directory, ignore_errors=True)
    return code


def _check(program: Program, ranks: int, keep: Path | None) -> None:
    if not 1 <= ranks <= _MOST_RANKS:
        raise UsageError(f"ranks must be between 1 and {_MOST_RANKS}, not {ranks}")
    program.check(os.environ)
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise UsageError(f"{str(keep)!r} is not an empty directory")


def _machines(hosts: str | None, port: int | None) -> Hosts | None:
    """Return the machines of the job that the options name; None if there is only this one.

    Raises UsageError for a wrong list or port.
    """
    if hosts is not None:
        machines = find_hosts(hosts, DEFAULT_PORT if port is None else port)
        if len(machines.names) == 1:
            return None
        machines.check_port()
        return machines
    if port is not None:
        raise UsageError(f"--port {port} is for a job of several machines: add --hosts a,b")
    return None


def _fault_wait_ns(given: str | None, plan: Plan) -> int:
    """Return the value of --fault-wait in nanoseconds, or its default.

    `plan` has the faults that this command starts and ends at their times. Raises UsageError for
    text that is no duration, and if no fault in `plan` has a time.
    """
    if given is None:
        return NO_GROUP_NS
    if plan.next_change(0) is None:
        raise UsageError(f"--fault-wait {given}: no fault of a rank or of a lab has a time")
    try:
        return parse_duration_ns(given)
    except UsageError as error:
        raise UsageError(f"--fault-wait {given}: {error}") from None


def _asked(**options: str | None) -> dict[str, str]:
    """Return the options for the ranks' engines as environment variables.

    Raises UsageError for a wrong value, before any rank starts.
    """
    asked: dict[str, str] = {}
    for option, given in options.items():
        if given is None:
            continue
        variable = {f"SLACKLINE_{option.upper()}": given}
        try:
            Environment.read(variable)
        except UsageError as error:
            name = option.replace("_", "-")
            raise UsageError(f"--{name} {given}: {str(error).partition(': ')[2]}") from None
        asked |= variable
    return asked
