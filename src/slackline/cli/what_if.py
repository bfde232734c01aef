"""`slackline what-if`: step times of a measured run on another network, predicted and measured."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slackline.cli._apply import changed_job, job_of_words, measure
from slackline.errors import UsageError
from slackline.units import count, show_bytes, show_rate, show_time

if TYPE_CHECKING:
    from slackline.predict import Change, Job, Prediction, Run

__all__ = ["what_if"]

_WIDTH = 200
"""The columns of a terminal that a table may use."""


def what_if(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A directory of telemetry (slackline run --keep), or of "
            "traces of torch.profiler or Chakra, a file for each rank.",
        ),
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- ARGUMENTS]...",
            help="The arguments of slackline run for --apply. Default: those in RUN/job.json.",
        ),
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            help='Predict the run with this change: "nics 2", "rate 1Gbit; plan ring". May be '
            "repeated; each option is a row. Default: none."
        ),
    ] = None,
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Run each changed job, and print the measured times too."),
    ] = False,
    samples: Annotated[
        int | None, typer.Option(help="Simulate this many steps for each row. Default: 64.")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Draw the times of computations with this seed. Default: 0.")
    ] = 0,
    chakra: Annotated[
        Path | None,
        typer.Option(
            "--export-chakra",
            metavar="PREFIX",
            help="Write the measured steps as Chakra execution traces PREFIX.RANK.et. "
            "Default: write none.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object; times in nanoseconds.")
    ] = False,
) -> int:
    """Predict the step times of a measured run after changes of its network or its model."""
    from slackline.history import Flaws
    from slackline.predict import (
        DEFAULT_SAMPLES,
        PipelineRun,
        Run,
        export_chakra,
        has_pipeline,
        load,
        load_pipeline,
        parse_changes,
        predict,
    )

    changes = [parse_changes(text) for text in change or ()]
    if apply and not changes:
        raise UsageError("--apply needs a --change to apply")
    if command and not apply:
        raise UsageError(f"the command line {' '.join(command)!r} is of use with --apply only")
    count = DEFAULT_SAMPLES if samples is None else samples
    measured: Run | PipelineRun
    flaws = Flaws()
    if has_pipeline(run):
        if chakra is not None:
            raise UsageError(
                f"--export-chakra is for data-parallel training, and {run} has a pipeline"
            )
        measured, heading = load_pipeline(run, flaws), ""
    else:
        measured = load(run, flaws)
        heading = _heading(measured)
        if chakra is not None:
            export_chakra(measured, chakra)
    if flaws.count:
        print(f"slackline: {flaws}", file=sys.stderr)
    job = _job_of(command, run) if apply else None
    jobs = [] if job is None else [changed_job(measured, job, each) for each in changes]
    rows = [_Row("as measured", (), predict(measured, (), count, seed), measured.wall_ns)]
    rows += [
        _Row("; ".join(map(str, each)), each, predict(measured, each, count, seed))
        for each in changes
    ]
    for row, changed in zip(rows[1:], jobs, strict=False):
        row.measured_ns = measure(changed, row.changes).wall_ns
    if as_json:
        print(json.dumps({"run": str(run), "rows": [row.as_object() for row in rows]}))
    else:
        _print(heading, rows)
    return 0


@dataclass(slots=True)
class _Row:
    """A row of the table: changes, their prediction, and measured step times."""

    name: str
    changes: "tuple[Change, ...]"
    prediction: "Prediction"
    measured_ns: tuple[int, ...] = ()

    def measured(self, share: float) -> int | None:
        """Return a percentile of the measured step times; None without measurement."""
        ordered = sorted(self.measured_ns)
        return ordered[round(share * (len(ordered) - 1))] if ordered else None

    @property
    def error(self) -> float | None:
        """The predicted median relative to the measured one, minus 1."""
        median_ns = self.measured(0.5)
        return None if median_ns is None else self.prediction.p50_ns / median_ns - 1

    def as_object(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return {
            "change": self.name,
            "p50_ns": self.prediction.p50_ns,
            "p95_ns": self.prediction.p95_ns,
            "exposed_ns": self.prediction.exposed_ns,
            "measured_p50_ns": self.measured(0.5),
            "measured_p95_ns": self.measured(0.95),
            "error": self.error,
            "reason": self.prediction.reason,
            "warnings": list(self.prediction.warnings),
        }


def _job_of(command: list[str] | None, run: Path) -> "Job":
    """Return the command line of the run; raise UsageError if it is not known."""
    from slackline.predict import JOB_FILE, read_job

    if command:
        return job_of_words(command)
    job = read_job(run)
    if job is None:
        raise UsageError(
            f"{run} has no {JOB_FILE}, so the run's command line is not known: give the arguments "
            "of slackline run behind --"
        )
    return job


def _print(heading: str, rows: list[_Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("change")
    for name in ("P50", "P95", "measured P50", "P95", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("reason")
    for row in rows:
        reason = " ".join((row.prediction.reason, *map(_warning, row.prediction.warnings)))
        table.add_row(
            row.name,
            _time(row.prediction.p50_ns),
            _time(row.prediction.p95_ns),
            _time(row.measured(0.5)),
            _time(row.measured(0.95)),
            "" if row.error is None else f"{row.error:+.1%}",
            reason,
        )
    console = Console(highlight=False, soft_wrap=True, width=_WIDTH)
    if heading:
        console.print(heading)
    console.print(table)


def _warning(phrase: str) -> str:
    return f"Not calibrated: {phrase}."


def _heading(run: "Run") -> str:
    nbytes = sum(group.nbytes for group in run.groups)
    plans = ", ".join(sorted({group.plan for group in run.groups}))
    carrier = "memory" if run.hosts == 1 else f"each of {count(run.nics, 'NIC')} a host"
    return (
        f"{count(run.ranks, 'rank')} on {count(run.hosts, 'host')}, "
        f"{count(len(run.steps), 'step')}, "
        f"{count(len(run.groups), 'group')} of {show_bytes(nbytes)} in all by {plans}; {carrier} "
        f"carries "
        f"{show_rate(run.link.rate_bps)}, a message takes {_time(run.link.one_way_ns)}"
    )


def _time(time_ns: int | None) -> str:
    return "" if time_ns is None else show_time(time_ns)
