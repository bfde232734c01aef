"""The command line of a job as data, which `slackline run --keep` writes beside the telemetry."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from slackline.env import Environment
from slackline.lab import LabOptions
from slackline.predict import Job

__all__ = ["job_of"]


def job_of(
    script: Path,
    arguments: Sequence[str],
    options: LabOptions | None,
    ranks: int,
    faults: Sequence[str],
    asked: Mapping[str, str],
) -> Job:
    """Return the job of a command line; `asked` has the variables that its options set."""
    given = {name: os.environ[name] for name in Environment.variables() if os.environ.get(name)}
    given.pop("SLACKLINE_TELEMETRY", None)
    return Job(
        folder=str(Path.cwd()),
        script=str(script.absolute()),
        arguments=tuple(arguments),
        lab=options is not None,
        ranks=ranks,
        nics=1 if options is None else options.nics,
        rate_bps=None if options is None else options.rate,
        switch=None if options is None else options.switch,
        faults=tuple(faults),
        settings={**given, **asked},
    )
