"""The command line of a run, kept beside its telemetry so that the run can be repeated.

`slackline run --keep DIR` writes the file DIR/job.json, one JSON object.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from slackline._checked import parse_json
from slackline.errors import UsageError

__all__ = ["JOB_FILE", "Job", "read_job", "write_job"]

JOB_FILE = "job.json"
_VERSION = 1
_Positive = Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True, kw_only=True)
class Job:
    """The arguments of `slackline run`."""

    folder: str
    """The directory in which the command was given."""
    script: str
    """The path of the script, or the name of the module."""
    module: bool = False
    """Whether `script` is the name of a module."""
    arguments: tuple[str, ...] = ()
    """The arguments of the script or module."""
    lab: bool = False
    """Whether the run had a lab (a virtual network on one machine)."""
    ranks: _Positive
    """The number of ranks that the command started."""
    nics: _Positive = 1
    """The number of NICs of each host of the lab."""
    rate_bps: _Positive | None = None
    """The rate of each NIC of the lab; None without a limit."""
    switch: str | None = None
    """The switch of the lab."""
    faults: tuple[str, ...] = ()
    """The injected faults."""
    cores: _Positive | None = None
    """The number of cores of the machine that the ranks could use; None if it is not known."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The SLACKLINE_* variables that the command was given or has set by its options."""


def write_job(directory: Path, job: Job) -> None:
    """Write the command line of a run to its directory; raise OSError if the disk refuses it."""
    head = {"kind": "job", "version": _VERSION}
    (directory / JOB_FILE).write_text(json.dumps({**head, **asdict(job)}, indent=2) + "\n")


def read_job(directory: Path) -> Job | None:
    """Return the command line of the run whose files are in `directory`; None without the file.

    Raises UsageError that names the file and the key of a wrong or missing value.
    """
    path = directory / JOB_FILE
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    head = parse_json(text, _HEAD, str(path))
    if head.kind != "job":
        raise UsageError(f'{path} is not of the kind "job": slackline run --keep writes it')
    if head.version != _VERSION:
        raise UsageError(f"{path}: version must be {_VERSION}, not {head.version}")
    return parse_json(text, _JOB, str(path))


class _Head(msgspec.Struct):
    kind: str = ""
    version: int = 0


_HEAD, _JOB = msgspec.json.Decoder(_Head), msgspec.json.Decoder(Job)
