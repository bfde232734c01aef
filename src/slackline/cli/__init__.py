"""The `slackline` command: one file a sub-command, each of which loads what it needs when it runs.

    __init__.py   the command and its errors
    run.py        slackline run: a script on several ranks, and a table of what communication cost
    lab.py        slackline lab: a network on this machine
    plan.py       slackline plan: print and check plans
    _pipeline*.py its `pipeline`: input, reports; _gantt.py draws
    doctor.py     slackline doctor: is a machine or a cluster fit for a run
    aggregate.py  slackline aggregate: a node that adds for the workers of a group
    circuit.py    slackline circuit: the circuits as Verilog, what they take of an FPGA
    _agent.py     the process under `run` that is torchrun
    _launch.py    a job: its files, its ranks, how it ended
    _orphans.py   what torchrun leaves behind when it is killed, and its end
    _screen.py    a job's output on a terminal or in plain lines
    _report.py    telemetry as progress and as the table per rank
    _doctor/      what doctor looks at

Nothing here imports torch: `slackline --help` answers at once.
"""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from slackline import __version__
from slackline.cli import aggregate, circuit, doctor, lab, plan, run
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
app.command(name="run", context_settings=run.SETTINGS)(run.run)
app.add_typer(plan.app, name="plan")
app.add_typer(lab.app, name="lab")
app.add_typer(circuit.app, name="circuit")
app.command(name="doctor")(doctor.doctor)
app.command(name="aggregate")(aggregate.aggregate)


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
    """Run the command and return its exit code; a mistake in the call is one line and code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(given or ["--help"], prog_name="slackline", standalone_mode=False)
    except typer.TyperException as error:
        return _refuse(error.format_message())
    except UsageError as error:
        return _refuse(str(error))
    return code if isinstance(code, int) else 0


def _refuse(message: str) -> int:
    print(f"slackline: {' '.join(message.split())}", file=sys.stderr)
    return 2
