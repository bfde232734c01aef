"""The command `slackline run`: run a program on several ranks; print the cost of communication.

The ranks run on this machine, on the hosts of a lab, or on several machines with the same command
on each. torchrun starts and watches the ranks, and its own options may stand beside those of
slackline. The output of rank 0, or of the first rank that prints if rank 0 is silent, is shown as
it is written. The output of the other ranks is stored, and shown if they fail.

Exit codes: 0; 2 for a wrong argument; a failed rank's own code; 1 for a rank that a signal killed;
128 + n if signal n ended the command itself (130 for Ctrl-C).
"""

import os
from pathlib import Path
from typing import Annotated

import typer

from slackline.cli._job._config import NO_CONFIG, read_config
from slackline.cli._job._following import shutdown_time
from slackline.cli._job._hosts import DEFAULT_PORT, Hosts, find_hosts
from slackline.cli._job._launch import Place, on_this_machine
from slackline.cli._job._options import (
    SETTINGS,
    Arguments,
    LabFlag,
    ModuleFlag,
    Nics,
    Rate,
    Switch,
)
from slackline.cli._job._program import Program
from slackline.cli._job._running import Request, run_job
from slackline.cli._job._shown import ALL, FIRST, check_shown
from slackline.cli._job._stage import NO_GROUP_NS, lab_options
from slackline.cli._job._torchrun import Torchrun, TorchrunCommand, read_torchrun, torchrun_words
from slackline.cli._job._wired_node import check_node
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
from slackline.lab import LabOptions
from slackline.units import parse_duration_ns

__all__ = ["SETTINGS", "TorchrunCommand", "run"]

_MOST_RANKS = 1024
_DEFAULT_RANKS = 4


def run(
    context: typer.Context,
    script: Annotated[
        Path | None,
        typer.Argument(
            metavar="SCRIPT", help="Run this script, or with -m this module, on each rank."
        ),
    ] = None,
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
    output: Annotated[
        str | None,
        typer.Option(
            metavar="RANKS",
            help="Show the output of this rank, of all ranks with a prefix (all), or of rank 0, "
            "or the first that prints if rank 0 is silent (first). Default: first; all with "
            "torchrun's --tee.",
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
    node: Annotated[
        str | None,
        typer.Option(
            help="With --lab: let an aggregation node of gateware add, simulated behind a wire of "
            "its own: ethernet. Default: none."
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare/--no-compare",
            help="With --node: run the job again with its sums in software, and compare the state "
            "at the end of both runs.",
        ),
    ] = True,
) -> int:
    """Run SCRIPT on several ranks of one or more machines and print what communication cost.

    Options of slackline, and those of torchrun, precede the script; options of the script follow
    it.
    """
    if script is None:
        raise UsageError(
            "name the program: slackline run --ranks 2 train.py; slackline run --help has all "
            "options"
        )
    torchrun = read_torchrun(torchrun_words(context))
    given = NO_CONFIG if config is None else read_config(config)
    options, ranks = _ranks(
        ranks if torchrun.ranks is None else _same(ranks, torchrun.ranks),
        given.ranks,
        lab=lab,
        hosts=hosts,
        nics=nics,
        rate=rate,
        switch=switch,
    )
    place, announcement = _place(
        torchrun, None if options is not None else hosts, port, ranks, lab=lab
    )
    program = Program.of_words(script, arguments, module=module, python=torchrun.python)
    world = ranks if place.world is None else place.world
    _check(program, world, keep)
    engine = {"timeout": timeout, "nic": nic, "nic_check": nic_check, "circuit": circuit}
    variables = {**given.variables, **_asked(**engine, **{"as": serve})}
    chosen = Environment.read({**os.environ, **variables})
    if nic_check is not None and chosen.nic != "twin":
        raise UsageError(
            f"--nic-check {nic_check}: a check needs a twin (a model in Python) as NIC; "
            "add --nic twin"
        )
    if node is not None:
        check_node(node, ranks, lab=lab, aggregator=chosen.aggregator)
    plan = parse_all(faults or ())
    timed = plan if lab else plan.of_ranks  # the engine itself times faults of links and NICs
    shown = ALL if output is None and torchrun.all_output else output or FIRST
    asked = Request(
        program=program,
        ranks=ranks,
        place=place,
        lab=options,
        chosen=chosen,
        variables=variables,
        config=given,
        faults=faults or (),
        plan=plan,
        fault_wait_ns=_fault_wait_ns(fault_wait, timed),
        grace=shutdown_time(shutdown_timeout, os.environ),
        keep=keep,
        output=check_shown(shown, world),
        announcement=announcement,
        passed=torchrun.passed,
        node=node is not None,
        compare=compare,
    )
    here = place.first == 0  # The machine of rank 0 serves the page.
    serving = served(
        page=page and here,
        page_listen=page_listen if here else None,
        metrics=metrics,
        metrics_listen=metrics_listen,
        metrics_token=metrics_token,
    )
    return run_job(asked, serving)


def _same(ranks: int | None, torchruns: int) -> int:
    """Return the number of ranks that --nproc-per-node gives; --ranks must not differ from it."""
    if ranks not in (None, torchruns):
        raise UsageError(f"--ranks {ranks} is not --nproc-per-node {torchruns}: give one of them")
    return torchruns


def _ranks(
    ranks: int | None,
    of_config: int | None,
    *,
    lab: bool,
    hosts: str | None,
    nics: int | None,
    rate: str | None,
    switch: str | None,
) -> tuple[LabOptions | None, int]:
    """Return the options of the lab, None without one, and the number of ranks on each machine."""
    if ranks is None and (hosts is None or not lab):
        ranks = of_config
    options = lab_options(
        lab=lab,
        ranks=ranks,
        hosts=hosts,
        nics=nics,
        rate=rate,
        switch=switch,
    )
    if options is not None:
        return options, options.hosts
    return None, _DEFAULT_RANKS if ranks is None else ranks


def _place(
    torchrun: Torchrun, hosts: str | None, port: int | None, ranks: int, *, lab: bool
) -> tuple[Place, str]:
    """Return the place of the job's ranks, and a line about its machines if there are several."""
    machines = _machines(hosts, port)
    of_torchrun = torchrun.place(ranks)
    if lab and (of_torchrun is not None or not torchrun.python):
        raise UsageError("--nnodes and --no-python are not for a lab: leave out --lab")
    if machines is not None and of_torchrun is not None:
        raise UsageError(f"--hosts {hosts} and --nnodes {torchrun.nodes}: give one of them")
    if machines is not None:
        return machines.place(ranks), machines.announcement(ranks)
    if of_torchrun is not None:
        return of_torchrun, f"node {torchrun.node} of {torchrun.nodes}"
    return on_this_machine(ranks), ""


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
