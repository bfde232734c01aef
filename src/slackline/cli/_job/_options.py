"""The options of all commands that start a job: `slackline run` and `slackline tune`."""

from typing import Annotated

import typer

__all__ = ["SETTINGS", "Arguments", "LabFlag", "ModuleFlag", "Nics", "Rate", "Switch"]

SETTINGS = {"allow_interspersed_args": False, "ignore_unknown_options": False}
"""Parser settings: all words after the script are arguments of the script."""

Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ARGUMENTS]...", help="Pass these to the script unchanged."),
]
ModuleFlag = Annotated[
    bool,
    typer.Option("--module", "-m", help="SCRIPT is the name of a module: job.train (python -m)."),
]
LabFlag = Annotated[
    bool, typer.Option("--lab", help="Give each rank a host of its own in a lab (root).")
]
Nics = Annotated[
    int | None, typer.Option(help="Give each host of the lab this many NICs. Default: 1.")
]
Rate = Annotated[
    str | None,
    typer.Option(help="Limit each NIC of the lab in each direction: 1Gbit. Default: unlimited."),
]
Switch = Annotated[
    str | None,
    typer.Option(
        help="Join the lab's hosts by kernel (its bridge), user (can delay and drop packets) "
        "or auto (by the faults). Default: auto."
    ),
]
