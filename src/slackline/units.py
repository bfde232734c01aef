"""Quantities as text: exact settings ("64KiB", "30ms"), and rounded figures ("1.5 MiB", "12.3 ms").

`parse_` and `format_` read and write settings. `show_` writes figures for people: three significant
digits, a space before the unit, SI units for times and rates, IEC units for bytes, no exponents.

A setting is a number and a unit, with no sign and no space between them. A fraction is accepted
where the result is a whole number of the base unit: "1.5KiB" is 1536 bytes, "0.3B" is an error.
Formatting picks the largest unit that divides the value, so parsing the text gives the same integer
back. Percentages and factors ("1%", "2x") become the nearest float. These functions raise
UsageError for a value that they cannot parse or format.
"""

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction

from slackline.errors import UsageError

__all__ = [
    "count",
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
    "show_byte_rate",
    "show_bytes",
    "show_moment",
    "show_number",
    "show_percent",
    "show_rate",
    "show_time",
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
_ENDLESS = float("inf")
_TIMES = {
    "ns": (1.0, 1000.0),
    "us": (1e3, 1000.0),
    "ms": (1e6, 1000.0),
    "s": (1e9, 600.0),
    "min": (60e9, 600.0),
    "h": (3600e9, _ENDLESS),
}
"""The size of each unit of figures, and the first value in this unit for which the next one is
used."""
_BINARY = {
    "B": (1.0, 1024.0),
    "KiB": (2.0**10, 1024.0),
    "MiB": (2.0**20, 1024.0),
    "GiB": (2.0**30, 1024.0),
    "TiB": (2.0**40, _ENDLESS),
}
_BIT_RATES = {
    "bit/s": (1.0, 1000.0),
    "kbit/s": (1e3, 1000.0),
    "Mbit/s": (1e6, 1000.0),
    "Gbit/s": (1e9, 1000.0),
    "Tbit/s": (1e12, _ENDLESS),
}
_BYTE_RATES = {
    "B/s": (1.0, 1000.0),
    "kB/s": (1e3, 1000.0),
    "MB/s": (1e6, 1000.0),
    "GB/s": (1e9, 1000.0),
    "TB/s": (1e12, _ENDLESS),
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


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: count(1, "rank") is "1 rank", count(4, "rank") "4 ranks".

    `plural` is the noun's plural where it does not end in "s" alone: "processes".
    """
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def show_number(value: float) -> str:
    """Round a number to three significant digits: 0.01234 is "0.0123", 1234.6 is "1235".

    Numbers from 1000 on keep their whole digits. There is no exponent and no zero at the end of a
    fraction.
    """
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    if digits > 0:
        value = round(value, digits)
    return _plain(Decimal(f"{value:.{max(0, digits)}f}"))


def show_time(nanoseconds: float) -> str:
    """Return a duration for people: "850 ns", "12.3 us", "1.5 ms", "90 s", "20 min", "10 h"."""
    return _show(nanoseconds, _TIMES) if nanoseconds else "0 s"


def show_moment(nanoseconds: int) -> str:
    """Return the time since a beginning, in seconds with one decimal: "12.3 s"."""
    return f"{nanoseconds / 1e9:.1f} s"


def show_bytes(number: float) -> str:
    """Return an amount of memory or data for people: "512 B", "64 KiB", "6.38 MiB"."""
    return _show(number, _BINARY)


def show_rate(bits_per_second: float) -> str:
    """Return the rate of a link for people: "940 Mbit/s", "12.9 Gbit/s"."""
    return _show(bits_per_second, _BIT_RATES)


def show_byte_rate(bytes_per_second: float) -> str:
    """Return a rate in bytes for people, as benchmarks of collectives have it: "1.23 GB/s"."""
    return _show(bytes_per_second, _BYTE_RATES)


def show_percent(share: float) -> str:
    """Return a share as a percentage for people: show_percent(0.1234) is "12.3%"."""
    return f"{show_number(share * 100)}%"


def _show(value: float, units: Mapping[str, tuple[float, float]]) -> str:
    """Return a value in the first unit in which it is less than the unit's limit when rounded."""
    if not math.isfinite(value):
        return f"{value} {next(iter(units))}"
    likely = (each for each in units.items() if abs(value) < each[1][0] * each[1][1])
    shown = ((show_number(value / size), unit, limit) for unit, (size, limit) in likely)
    return next(f"{text} {unit}" for text, unit, limit in shown if abs(float(text)) < limit)


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
