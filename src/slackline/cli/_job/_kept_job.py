"""The command line of a job as data, which `slackline run --keep` writes beside the telemetry."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from slackline.cli._job._limits import usable_cores
from slackline.cli._job._program import Program
from slackline.env import Environment
from slackline.lab import LabOptions
from slackline.predict import Job

__all__ = ["job_of"]


def job_of(
    program: Program,
    options: LabOptions | None,
    ranks: int,
    faults: Sequence[str],
    environment: Mapping[str, str],
) -> Job:
    """Return the job of a command line in an environment, which has the variables of options."""
    names = sorted(Environment.variables().keys() - {"SLACKLINE_TELEMETRY", "SLACKLINE_REPORTS"})
    return Job(
        folder=str(Path.cwd()),
        script=program.name if program.module else str(Path(program.name).absolute()),
        module=program.module,
        arguments=program.arguments,
        lab=options is not None,
        ranks=ranks,
        nics=1 if options is None else options.nics,
        rate_bps=None if options is None else options.rate,
        switch=None if options is None else options.switch,
        faults=tuple(faults),
        cores=usable_cores(),
        settings={name: environment[name] for name in names if environment.get(name)},
    )
