"""A file of settings for `slackline run --config`: a key for each setting of a job.

    ranks = 4
    plan = "ring"
    rails = ["shm", "tcp"]
    segment = "512KiB"

The keys are `ranks` and the names of the environment variables, in lower case and without
SLACKLINE_. Each value has the text that the variable takes; whole numbers need no quotes, and a
list stands for values that commas separate.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slackline.env import Environment
from slackline.errors import UsageError

__all__ = ["KEYS", "NO_CONFIG", "Config", "config_text", "read_config", "variable_of"]

_SET_BY_THE_COMMAND = {
    "telemetry": "slackline run sets the directory; --keep keeps its files",
    "reports": "slackline run keeps the reports of failures with the telemetry",
    "faults": "faults are options of the command: --fault",
}

KEYS = {
    variable.removeprefix("SLACKLINE_").lower(): variable
    for variable in Environment.variables()
    if variable.removeprefix("SLACKLINE_").lower() not in _SET_BY_THE_COMMAND
}
"""The keys of a file except for `ranks`, each with its environment variable."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of one file."""

    name: str
    """The file, as the user named it; empty for no file."""
    ranks: int | None = None
    """The number of ranks on each machine; None if the file does not set it."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for the ranks, with their values."""

    def replaced(self, environment: Mapping[str, str], used: Mapping[str, str]) -> list[str]:
        """Return a sentence for each variable of `environment` that the file has replaced.

        `used` has the values that the job gets.
        """
        return [
            f"{self.name} sets {variable.removeprefix('SLACKLINE_').lower()} to {value!r}, in "
            f"place of {variable}={environment[variable]}"
            for variable, value in self.variables.items()
            if environment.get(variable, "") not in ("", value) and used[variable] == value
        ]


NO_CONFIG = Config(name="")
"""The settings without a file."""


def variable_of(key: str) -> str:
    """Return the environment variable of a key, such as SLACKLINE_PLAN of "plan"."""
    return KEYS[key]


def read_config(path: Path) -> Config:
    """Read a file of settings.

    Raises UsageError that names the file, the line, the key, the value and the accepted values.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"cannot read {path}: it is not UTF-8") from None
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}") from None
    ranks = None
    variables: dict[str, str] = {}
    for key, value in given.items():
        place = f"{path}, {_line(text, key)}{key} = {_brief(value)}"
        try:
            if key == "ranks":
                ranks = _ranks(value)
            else:
                variable = _variable(key)
                variables[variable] = _text(value)
        except UsageError as error:
            raise UsageError(f"{place}: {error}") from None
    for key in given:
        if key != "ranks":
            place = f"{path}, {_line(text, key)}{key} = {_brief(given[key])}"
            _check(place, key, variables)
    return Config(name=str(path), ranks=ranks, variables=variables)


def config_text(settings: Mapping[str, str | int], comments: Sequence[str] = ()) -> str:
    """Return the text of a file with `settings`, after a line of comment for each of `comments`.

    The keys are those that `read_config` accepts.
    """
    lines = [f"# {' '.join(comment.split())}".rstrip() for comment in comments]
    for key, value in settings.items():
        lines.append(f"{key} = {value if isinstance(value, int) else _quoted(value)}")
    return "\n".join(lines) + "\n"


def _variable(key: str) -> str:
    if key in _SET_BY_THE_COMMAND:
        raise UsageError(f"a file cannot set {key}: {_SET_BY_THE_COMMAND[key]}")
    if key not in KEYS:
        raise UsageError(f'there is no setting "{key}"; the settings are ranks, {", ".join(KEYS)}')
    return KEYS[key]


def _ranks(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError("ranks must be a positive integer")
    return value


def _text(value: object) -> str:
    """Return a value of a file as text of an environment variable."""
    values = value if isinstance(value, list) else [value]
    for each in values:
        if isinstance(each, bool) or not isinstance(each, str | int):
            raise UsageError("a value must be text, an integer or a list of these")
    text = ",".join(map(str, values))
    if not text:
        raise UsageError("a value must not be empty; leave the key out for the default")
    return text


def _check(place: str, key: str, variables: Mapping[str, str]) -> None:
    """Raise UsageError, which begins with `place`, for a value that a setting does not accept."""
    from slackline.nic import NicOptions
    from slackline.plan.pipeline import SCHEDULES

    variable = KEYS[key]
    try:
        read = Environment.read({variable: variables[variable]})
        # The plan "star" is valid only together with an aggregator.
        beside = {KEYS["aggregator"]: variables.get(KEYS["aggregator"], "")}
        NicOptions.from_env(Environment.read({**beside, variable: variables[variable]}))
    except UsageError as error:
        raise UsageError(f"{place}: {str(error).removeprefix(f'{variable}: ')}") from None
    if key == "schedule" and read.schedule not in SCHEDULES:
        raise UsageError(f"{place}: a schedule must be one of {', '.join(SCHEDULES)}")


def _line(text: str, key: str) -> str:
    """Return the place of a top-level key in a TOML text: "line 3: "; empty if it is not found."""
    name = re.escape(key)
    found = re.search(rf"""^[ \t]*(\[+[ \t]*)?["']?{name}["']?[ \t]*[=.\]]""", text, re.MULTILINE)
    return "" if found is None else f"line {text.count(chr(10), 0, found.start()) + 1}: "


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _quoted(text: str) -> str:
    """Return a text as a basic string of TOML."""
    escaped = "".join(
        f"\\{each}" if each in '"\\' else each if each.isprintable() else f"\\U{ord(each):08X}"
        for each in text
    )
    return f'"{escaped}"'
