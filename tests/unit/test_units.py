import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackline import units
from slackline.errors import UsageError

WHOLE = st.integers(0, 1 << 62)


def test_quantities_are_read_as_people_write_them() -> None:
    assert units.parse_bytes("64KiB") == 65536
    assert units.parse_bytes("1.5KiB") == 1536
    assert units.parse_bytes("2MB") == 2_000_000
    assert units.parse_rate("1Gbit") == 10**9
    assert units.parse_rate("2.5Gbit") == 2_500_000_000
    assert units.parse_duration_ns("30ms") == 30_000_000
    assert units.parse_duration_ns("2min") == 120_000_000_000


def test_quantities_are_written_in_the_largest_unit_that_divides_them() -> None:
    assert units.format_bytes(65536) == "64KiB"
    assert units.format_bytes(1537) == "1537B"
    assert units.format_bytes(0) == "0B"
    assert units.format_rate(10**9) == "1Gbit"
    assert units.format_duration_ns(30_000_000) == "30ms"
    assert units.format_duration_ns(90_000_000_000) == "90s"


@given(WHOLE)
def test_what_is_written_reads_back_as_the_same_integer(value: int) -> None:
    assert units.parse_bytes(units.format_bytes(value)) == value
    assert units.parse_rate(units.format_rate(value)) == value
    assert units.parse_duration_ns(units.format_duration_ns(value)) == value


@pytest.mark.parametrize("text", ["", "64", "KiB", "64 KiB", "-1KiB", "64kib", "1e3B", "64KiB\n"])
def test_a_size_that_is_none_is_refused_by_name(text: str) -> None:
    message = (
        f"a size must be a number and one of B, kB, KiB, MB, MiB, GB, GiB, TB, TiB, not {text!r}"
    )
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        units.parse_bytes(text)


def test_other_quantities_are_refused_by_name_too() -> None:
    with pytest.raises(
        UsageError,
        match=r"^a rate must be a number and one of bit, kbit, Mbit, Gbit, Tbit, not '1GiB'$",
    ):
        units.parse_rate("1GiB")
    with pytest.raises(
        UsageError,
        match=r"^a duration must be a number and one of ns, us, ms, s, min, h, not '30'$",
    ):
        units.parse_duration_ns("30")


def test_a_fraction_of_the_base_unit_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"^a duration must be a whole number of nanoseconds, not '0\.5ns'$"
    ):
        units.parse_duration_ns("0.5ns")


def test_a_negative_quantity_is_not_written() -> None:
    with pytest.raises(UsageError, match=r"^a size must not be negative, like -1$"):
        units.format_bytes(-1)
