"""The command `slackline tune`: find settings with which a script's training steps are shorter.

Exit codes: 0, also if the defaults are the fastest; 1 if a trial with the defaults fails after the
first one; 2 for a wrong argument, and for a script that takes too few steps; the script's own code
if the first trial fails; 128 + n if signal n ended the command.
"""

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slackline.cli._job._interrupts import collected_signals
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
from slackline.cli._job._stage import lab_options
from slackline.env import Environment
from slackline.errors import UsageError
from slackline.faults import parse_all
from slackline.units import parse_duration_ns
from slackline.views.terminal import Screen, open_screen

if TYPE_CHECKING:
    from slackline.cli._tune import Attempt

__all__ = ["SETTINGS", "tune"]


def tune(
    script: Annotated[
        Path,
        typer.Argument(
            metavar="SCRIPT", help="Run this script, or with -m this module, in each trial."
        ),
    ],
    arguments: Arguments = None,
    module: ModuleFlag = False,
    ranks: Annotated[
        int | None, typer.Option("--ranks", "-n", help="Start this many ranks. Default: 4.")
    ] = None,
    trials: Annotated[int, typer.Option(help="Try at most this many candidates.")] = 4,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="End the search after about this long.")
    ] = "3min",
    steps: Annotated[
        int, typer.Option(help="Measure this many steps of each trial, after a warm-up of 10.")
    ] = 30,
    output: Annotated[
        Path, typer.Option(metavar="FILE", help="Write the settings to this new TOML file.")
    ] = Path("tuned.toml"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object too.")
    ] = False,
    faults: Annotated[
        list[str] | None,
        typer.Option("--fault", help="Inject this fault in every trial. May be repeated."),
    ] = None,
    lab: LabFlag = False,
    hosts: Annotated[
        str | None,
        typer.Option(metavar="N", help="With --lab: run on so many hosts. Default: 4."),
    ] = None,
    nics: Nics = None,
    rate: Rate = None,
    switch: Switch = None,
) -> int:
    """Try settings of slackline with SCRIPT and write the fastest that are confirmed to a file.

    SCRIPT is started for every trial and ended after some steps. Options of slackline precede the
    script; options of the script follow it.
    """
    from slackline.cli import _tune

    began_s = time.monotonic()
    if hosts is not None and not lab:
        raise UsageError("--hosts is an option of a lab: add --lab")
    options = lab_options(
        lab=lab,
        ranks=ranks,
        hosts=hosts,
        nics=nics,
        rate=rate,
        switch=switch,
    )
    world = options.hosts if options is not None else 4 if ranks is None else ranks
    budget_s = _budget_s(budget)
    program = Program.of_words(script, arguments, module=module)
    _check(program, world, trials, steps, output)
    parse_all(faults or ())  # A wrong fault is reported before anything runs.
    job = _tune.Script(
        program=program,
        ranks=world,
        lab=options,
        faults=faults or (),
    )
    with (
        collected_signals() as received,
        open_screen("slackline tune") as screen,
        tempfile.TemporaryDirectory(prefix="slackline-tune-") as folder,
    ):
        tuner = _tune.Tuner(job, Path(folder), steps=steps, screen=screen, received=received)
        try:
            verdict = tuner.run(trials, began_s + budget_s, budget)
        except _tune.InterruptedSearchError:
            _show(screen, tuner.attempts)
            name = signal.Signals(received[0]).name
            screen.note(f"ended by {name}; all ranks have left, and no file is written")
            return 128 + received[0]
        except _tune.DefaultsFailedError as error:
            _show(screen, tuner.attempts)
            screen.note(f"{error}; no file is written")
            return 1
        except _tune.ScriptFailedError as error:
            return error.exit_code
        assert tuner.first is not None
        assert tuner.first.measure is not None
        _show(screen, tuner.attempts)
        output.write_text(
            _tune.result_text(
                verdict,
                tuner.base,
                command=["slackline", *sys.argv[1:]],
                ranks=world,
                steps=steps,
                measure=tuner.first.measure,
                environment=os.environ,
                today=date.today(),
            )
        )
        screen.note(f"{verdict.best}: {verdict.reason}")
        if verdict.best.settings:
            screen.note(_tune.gain_text(verdict))
        screen.note(f"written: {output}")
        if as_json:
            result = _tune.result_json(
                verdict,
                tuner.attempts,
                tuner.base,
                path=output,
                ranks=world,
                steps=steps,
                measure=tuner.first.measure,
            )
            print(json.dumps(result))
    return 0


def _budget_s(text: str) -> float:
    try:
        budget_ns = parse_duration_ns(text)
    except UsageError as error:
        raise UsageError(f"--budget {text}: {error}") from None
    if not budget_ns:
        raise UsageError(f"--budget must be positive, not {text}")
    return budget_ns / 1e9


def _check(program: Program, ranks: int, trials: int, steps: int, output: Path) -> None:
    """Raise UsageError for a wrong argument, before anything runs."""
    program.check(os.environ)
    if not 2 <= ranks <= 1024:
        raise UsageError(f"ranks must be between 2 and 1024, not {ranks}")
    for name, value in (("trials", trials), ("steps", steps)):
        if value < 1:
            raise UsageError(f"--{name} must be a positive integer, not {value}")
    if output.exists():
        raise UsageError(f"{str(output)!r} exists already: name another file by --output")
    if not output.parent.is_dir():
        raise UsageError(f"there is no directory {str(output.parent)!r} for {str(output)!r}")
    Environment.read()


def _show(screen: Screen, attempts: "Sequence[Attempt]") -> None:
    from slackline.cli._tune import attempts_table

    if attempts:
        screen.table(attempts_table(attempts))
