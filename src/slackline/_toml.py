"""Tables of a TOML file, read key by key; every error names the file, the table and the key."""

import tomllib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from slackline.errors import UsageError
from slackline.units import parse_bytes, parse_duration_ns, parse_rate

__all__ = ["Table", "boolean", "duration_ps", "integer", "listed", "one_of", "rate", "size", "text"]

_PS_PER_NS = 1000
_Value = TypeVar("_Value")


class Table:
    """A table of a TOML file. Each key is taken once, and `end` refuses keys that were not
    taken.
    """

    def __init__(self, name: str, values: Mapping[str, Any], path: str = "") -> None:
        self._name, self._values, self._path = name, dict(values), path
        self._known: list[str] = []

    @classmethod
    def parse(cls, text: str, name: str) -> "Table":
        """Return the top-level table of the file `name`; raise UsageError if `text` is not TOML."""
        try:
            return cls(name, tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise UsageError(f"{name} is not TOML: {error}") from None

    def copy(self) -> "Table":
        """Return a new table, with the values that have not been taken from this table."""
        return Table(self._name, self._values, self._path)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def take(
        self, key: str, read: Callable[[Any], _Value], default: _Value | None = None
    ) -> _Value:
        """Return a key's value, or the default; raise UsageError if both are missing."""
        self._known.append(key)
        if key not in self._values:
            if default is None:
                raise UsageError(f'{self._name}: {self._place()} lacks "{key}"')
            return default
        return self._read(key, read)

    def take_if_there(self, key: str, read: Callable[[Any], _Value]) -> _Value | None:
        """Return a key's value, or None."""
        self._known.append(key)
        return self._read(key, read) if key in self._values else None

    def table(self, key: str) -> "Table":
        """Return the table under `key`; if the key is missing, return an empty table."""
        self._known.append(key)
        values = self._values.pop(key, {})
        if not isinstance(values, dict):
            raise UsageError(f"{self._name}: {key} must be a table, not {values!r}")
        return Table(self._name, values, self._under(key))

    def tables(self, key: str) -> "list[Table]":
        """Return the tables of the array of tables `[[key]]`; empty if the key is missing."""
        self._known.append(key)
        values = self._values.pop(key, [])
        if not isinstance(values, list) or not all(isinstance(each, dict) for each in values):
            raise UsageError(
                f"{self._name}: {key} must be an array of tables, [[{key}]], not {values!r}"
            )
        path = self._under(key)
        return [Table(self._name, each, f"{path} {number}") for number, each in enumerate(values)]

    def end(self) -> None:
        """Raise UsageError if the table has a key that no method has read."""
        for key in self._values:
            known = ", ".join(self._known)
            raise UsageError(
                f'{self._name}: {self._place()} does not take the key "{key}"; it takes {known}'
            )

    def wrong(self, error: UsageError) -> UsageError:
        """Return an error about a value of this table, which names the file and the table."""
        return UsageError(f"{self._name}: {self._place()}: {error}")

    def _read(self, key: str, read: Callable[[Any], _Value]) -> _Value:
        try:
            return read(self._values.pop(key))
        except UsageError as error:
            place = f"{self._place()} {key}" if self._path else key
            raise UsageError(f"{self._name}: {place}: {error}") from None

    def _place(self) -> str:
        return f"[{self._path}]" if self._path else "the file"

    def _under(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key


def integer(value: Any) -> int:
    """Return `value` if it is an integer of at least 0; raise UsageError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"must be an integer of at least 0, not {value!r}")
    return value


def boolean(value: Any) -> bool:
    """Return `value` if it is a boolean; raise UsageError otherwise."""
    if not isinstance(value, bool):
        raise UsageError(f"must be true or false, not {value!r}")
    return value


def size(value: Any) -> int:
    """Return the bytes of a text like "64KiB"."""
    return parse_bytes(text(value))


def rate(value: Any) -> int:
    """Return the bits per second of a text like "1Gbit"."""
    return parse_rate(text(value))


def duration_ps(value: Any) -> int:
    """Return the picoseconds of a text like "30us"."""
    return parse_duration_ns(text(value)) * _PS_PER_NS


def one_of(*names: str) -> Callable[[Any], str]:
    """Return a function that reads one of the names `names`."""

    def read(value: Any) -> str:
        if value not in names:
            raise UsageError(f"must be one of {', '.join(names)}, not {value!r}")
        return str(value)

    return read


def listed(read: Callable[[Any], _Value]) -> Callable[[Any], list[_Value]]:
    """Return a function that reads one value, or an array of at least one value, by `read`."""

    def read_all(value: Any) -> list[_Value]:
        values = value if isinstance(value, list) else [value]
        if not values:
            raise UsageError("must have at least one value")
        return [read(each) for each in values]

    return read_all


def text(value: Any) -> str:
    """Return `value` if it is text; raise UsageError otherwise."""
    if not isinstance(value, str):
        raise UsageError(f"must be text, not {value!r}")
    return value
