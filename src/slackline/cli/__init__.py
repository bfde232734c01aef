"""The `slackline` command, with one file for each sub-command.

    __init__.py   the command and its error handling
    run.py        `slackline run`: run a script on several ranks and print what communication cost
    bisect.py     `slackline bisect`: where two runs with virtual ranks have other bits
    certify.py    `slackline certify`: the hash of a training's state after each step
    bench.py      `slackline bench`: the time and the rate of a collective by size
    _bench/       its ranks
    top.py        `slackline top`: a job on a terminal, on a page, or as metrics
    why.py        `slackline why`: why a job failed, why it was slow, and the run in ten lines
    help.py       `slackline help`: the meaning of an error, and what to do after it
    trace.py      `slackline trace`: a run as a trace for Perfetto, Chrome or OpenTelemetry
    tune.py       `slackline tune`: find settings with which a script's steps are shorter
    _tune/        the search for these settings
    lab.py        `slackline lab`: a virtual network on this machine
    plan.py       `slackline plan`: print and check plans
    _plan_pipeline/   `slackline plan pipeline`
    doctor.py     `slackline doctor`: check that a machine or a cluster is fit for a run
    aggregate.py  `slackline aggregate`: an aggregation node in software
    simulate.py   `slackline simulate`: simulate the experiment that a file describes
    reproduce.py  `slackline reproduce`: published tables beside the simulator's figures, and the
                  accuracy of a trained network
    what_if.py    `slackline what-if`: step times of a measured run on another network
    circuit.py    `slackline circuit`: the circuits as Verilog, and the FPGA resources they need
    _apply.py     a measured run, run again with changes
    _job/         a job: its options, hosts, processes, faults, exit codes and files
    _serving.py   the page and the metrics that `top` and `run` serve
    _doctor/      the checks that `slackline doctor` makes

No file here imports torch at its top, and each sub-command imports what it needs when it runs:
`slackline --help` answers at once.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from slackline import __version__
from slackline.cli import (
    aggregate,
    bench,
    bisect,
    certify,
    circuit,
    doctor,
    help,
    lab,
    plan,
    reproduce,
    run,
    simulate,
    top,
    trace,
    tune,
    what_if,
    why,
)
from slackline.errors import UsageError

__all__ = ["app", "main"]

app = typer.Typer(
    name="slackline",
    help="Distributed PyTorch training at full speed on networks that are not perfect.",
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_TRAIN = "Train"
_NETWORK = "Check and try a network"
_LOOK = "Look at a job"
_STUDY = "Study and plan"
"""The groups of commands in the help."""

app.command("run", context_settings=run.SETTINGS, cls=run.TorchrunCommand, rich_help_panel=_TRAIN)(
    run.run
)
app.command("tune", context_settings=tune.SETTINGS, rich_help_panel=_TRAIN)(tune.tune)
app.command("aggregate", rich_help_panel=_TRAIN)(aggregate.aggregate)
app.command("doctor", rich_help_panel=_NETWORK)(doctor.doctor)
app.command("bench", rich_help_panel=_NETWORK)(bench.bench)
app.add_typer(lab.app, name="lab", rich_help_panel=_NETWORK)
app.command("top", rich_help_panel=_LOOK)(top.top)
app.command("why", rich_help_panel=_LOOK)(why.why)
app.command("help", rich_help_panel=_LOOK)(help.explain)
app.command("certify", rich_help_panel=_LOOK)(certify.certify)
app.command("bisect", rich_help_panel=_LOOK)(bisect.bisect)
app.command("trace", rich_help_panel=_LOOK)(trace.trace)
app.command("what-if", rich_help_panel=_STUDY)(what_if.what_if)
app.add_typer(plan.app, name="plan", rich_help_panel=_STUDY)
app.command("simulate", rich_help_panel=_STUDY)(simulate.simulate)
app.add_typer(reproduce.app, name="reproduce", rich_help_panel=_STUDY)
app.add_typer(circuit.app, name="circuit", rich_help_panel=_STUDY)


def _version(asked: bool) -> None:
    if asked:
        print(f"slackline {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None: ...


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    A wrong argument is reported in one line, with exit code 2.
    """
    _open_closed_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(given or ["--help"], prog_name="slackline", standalone_mode=False)
    except typer.TyperException as error:
        return _refuse(error.format_message() + _wrong_values(error))
    except UsageError as error:
        return _refuse(str(error))
    return code if isinstance(code, int) else 0


def _open_closed_streams() -> None:
    """Open /dev/null for each standard stream that is closed, as cron and daemons start programs.

    Python has None for such a stream, and the next file that is opened would take its descriptor,
    so that a child process writes its output to that file.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # It gets the lowest free number, this one.
            os.set_inheritable(opened, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def _wrong_values(error: typer.TyperException) -> str:
    """Return the values that typer's message on a wrong type leaves out."""
    cause = error.__cause__
    if cause is None:
        return ""
    # An import at the top would make the start of every command longer.
    from pydantic import ValidationError

    if not isinstance(cause, ValidationError):
        return ""
    return f": {', '.join(repr(each['input']) for each in cause.errors())}"


def _refuse(message: str) -> int:
    print(f"slackline: {' '.join(message.split())}", file=sys.stderr)
    return 2
