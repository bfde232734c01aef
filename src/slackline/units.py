"""Sizes, rates and durations in readable form ("64KiB", "1Gbit", "30ms"), as integers in code.

Percentages and factors ("1%", "2x") become the nearest float.

A quantity is a number and a unit, with no sign and no space between them. A fraction is accepted
where the result is a whole number of the base unit: "1.5KiB" is 1536 bytes, "0.3B" is an error.
Formatting picks the largest unit that divides the value, so parsing the text gives the same integer
back. Every function raises UsageError for a value that it cannot parse or format.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction

from slackline.errors import UsageError

__all__ = [
    "decimal_bytes",
    "format_bytes",
    "format_duration_ns",
    "format_factor",
    "format_percent",
    "format_rate",
    "parse_bytes",
    "parse_duration_ns",
    "parse_factor",
    "parse_percent",
    "parse_rate",
]

_BYTES = {
    "B": 1,
    "kB": 10**3,
    "KiB": 1 << 10,
    "MB": 10**6,
    "MiB": 1 << 20,
    "GB": 10**9,
    "GiB": 1 << 30,
    "TB": 10**12,
    "TiB": 1 << 40,
}
_RATES = {"bit": 1, "kbit": 10**3, "Mbit": 10**6, "Gbit": 10**9, "Tbit": 10**12}
_DURATIONS = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
}
_QUANTITY = re.compile(r"(\d{1,30}(?:\.\d{1,30})?)([A-Za-z]+)", re.ASCII)
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)%", re.ASCII)
_FACTOR = re.compile(r"(\d+(?:\.\d+)?)x", re.ASCII)
_LARGEST = (1 << 63) - 1
"""The largest quantity, since the native code holds quantities as signed 64-bit integers."""


def parse_bytes(text: str) -> int:
    """Parse a size into bytes: parse_bytes("64KiB") == 65536."""
    return _parse(text, "size", _BYTES, "bytes")


def parse_rate(text: str) -> int:
    """Parse a rate into bits per second: parse_rate("1Gbit") == 10**9."""
    return _parse(text, "rate", _RATES, "bits per second")


def parse_duration_ns(text: str) -> int:
    """Parse a duration into nanoseconds: parse_duration_ns("30ms") == 30 * 10**6."""
    return _parse(text, "duration", _DURATIONS, "nanoseconds")


def format_bytes(value: int) -> str:
    """Format a size in the largest unit that divides it: format_bytes(65536) == "64KiB"."""
    return _format(value, "size", _BYTES)


def format_rate(value: int) -> str:
    """Format a rate in the largest unit that divides it: format_rate(10**9) == "1Gbit"."""
    return _format(value, "rate", _RATES)


def format_duration_ns(value: int) -> str:
    """Format a duration in the largest unit that divides it.

    format_duration_ns(30_000) == "30us".
    """
    return _format(value, "duration", _DURATIONS)


def parse_percent(text: str) -> float:
    """Parse a percentage into a fraction from 0 to 1: parse_percent("1.5%") == 0.015."""
    match = _PERCENT.fullmatch(text)
    if match is None or Decimal(match[1]) > 100:
        raise UsageError(f"a percentage must be a number from 0 to 100 followed by %, not {text!r}")
    return float(Decimal(match[1]).scaleb(-2))


def format_percent(value: float) -> str:
    """Format a fraction from 0 to 1 with the fewest digits: format_percent(0.015) == "1.5%"."""
    if not 0.0 <= value <= 1.0:
        raise UsageError(f"a fraction must be between 0 and 1, not {value}")
    return f"{_plain(Decimal(repr(value)).scaleb(2))}%"


def parse_factor(text: str) -> float:
    """Parse a factor: parse_factor("2x") == 2.0."""
    match = _FACTOR.fullmatch(text)
    if match is None:
        raise UsageError(f"a factor must be a number followed by x, not {text!r}")
    return float(match[1])


def format_factor(value: float) -> str:
    """Format a factor with the fewest digits that identify it: format_factor(2.0) == "2x"."""
    if not 0.0 <= value < float("inf"):
        raise UsageError(f"a factor must be finite and at least 0, not {value}")
    return f"{_plain(Decimal(repr(value)))}x"


def decimal_bytes(number: int) -> str:
    """Format a size in decimal units for people, with three digits: 1234567 is "1.23 MB"."""
    size = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{number} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def _plain(value: Decimal) -> str:
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _parse(text: str, what: str, units: Mapping[str, int], base: str) -> int:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in units:
        known = ", ".join(units)
        raise UsageError(f"a {what} must be a number and one of {known}, not {text!r}")
    value = Fraction(match[1]) * units[match[2]]
    if value.denominator != 1:
        raise UsageError(f"a {what} must be a whole number of {base}, not {text!r}")
    if value > _LARGEST:
        raise UsageError(f"a {what} must be at most {_LARGEST} {base}, not {text!r}")
    return value.numerator


def _format(value: int, what: str, units: Mapping[str, int]) -> str:
    if value < 0:
        raise UsageError(f"a {what} must be at least 0, not {value}")
    fitting = [name for name, factor in units.items() if value % factor == 0 and value]
    name = max(fitting, key=lambda name: units[name], default=next(iter(units)))
    return f"{value // units[name]}{name}"
