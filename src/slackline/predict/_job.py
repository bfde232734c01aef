"""The command line of a run, kept beside its telemetry so that the run can be repeated.

`slackline run --keep DIR` writes the file DIR/job.json, one JSON object.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from slackline.errors import UsageError

__all__ = ["JOB_FILE", "Job", "read_job", "write_job"]

JOB_FILE = "job.json"
_VERSION = 1
_Value = TypeVar("_Value")


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
    ranks: int
    """The number of ranks that the command started."""
    nics: int = 1
    """The number of NICs of each host of the lab."""
    rate_bps: int | None = None
    """The rate of each NIC of the lab; None without a limit."""
    switch: str | None = None
    """The switch of the lab."""
    faults: tuple[str, ...] = ()
    """The injected faults."""
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
        given = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        raise UsageError(f"{path} is not JSON") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    if not isinstance(given, dict) or given.get("kind") != "job":
        raise UsageError(f'{path} is not of the kind "job": slackline run --keep writes it')
    if (version := given.get("version")) != _VERSION:
        raise UsageError(f"{path}: version must be {_VERSION}, not {version!r}")
    return Job(
        folder=_take(given, "folder", str, path),
        script=_take(given, "script", str, path),
        module=_take(given, "module", bool, path) if "module" in given else False,
        arguments=_texts(given, "arguments", path),
        lab=_take(given, "lab", bool, path),
        ranks=_positive(given, "ranks", path),
        nics=_positive(given, "nics", path),
        rate_bps=None if given.get("rate_bps") is None else _positive(given, "rate_bps", path),
        switch=None if given.get("switch") is None else _take(given, "switch", str, path),
        faults=_texts(given, "faults", path),
        settings={
            str(name): str(value) for name, value in _take(given, "settings", dict, path).items()
        },
    )


def _take(given: Mapping[str, object], key: str, kind: type[_Value], path: Path) -> _Value:
    value = given.get(key)
    if not isinstance(value, kind):
        raise UsageError(f"{path}: {key} must be a {kind.__name__}, not {value!r}")
    return value


def _positive(given: Mapping[str, object], key: str, path: Path) -> int:
    value = _take(given, key, int, path)
    if isinstance(value, bool) or value < 1:
        raise UsageError(f"{path}: {key} must be a positive integer, not {value!r}")
    return value


def _texts(given: Mapping[str, object], key: str, path: Path) -> tuple[str, ...]:
    values = _take(given, key, list, path)
    for value in values:
        if not isinstance(value, str):
            raise UsageError(f"{path}: {key} must have texts only, not {value!r}")
    return tuple(values)
