import contextlib
import re
from collections.abc import Callable

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


def test_a_quantity_that_no_64_bits_hold_is_refused() -> None:
    assert units.parse_duration_ns(f"{(1 << 63) - 1}ns") == (1 << 63) - 1
    with pytest.raises(
        UsageError,
        match=r"^a duration must be at most 9223372036854775807 nanoseconds, not '2562048h'$",
    ):
        units.parse_duration_ns("2562048h")


NUMBERS = st.from_regex(r"\A[0-9]{1,40}(\.[0-9]{1,40})?\Z")
UNITS = st.sampled_from(("B", "KiB", "TiB", "bit", "Tbit", "ns", "min", "h", "%", "x", "kb", ""))
TEXTS = (
    st.text(max_size=40)
    | st.builds(str.__add__, NUMBERS, UNITS)
    | st.builds(lambda digits, unit: "9" * digits + unit, st.integers(1, 6000), UNITS)
)
PARSERS = (
    units.parse_bytes,
    units.parse_rate,
    units.parse_duration_ns,
    units.parse_percent,
    units.parse_factor,
)


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: parse.__name__)
@given(text=TEXTS)
def test_any_text_is_a_quantity_or_a_usage_error(parse: Callable[[str], float], text: str) -> None:
    with contextlib.suppress(UsageError):
        assert parse(text) >= 0


def test_a_fraction_of_the_base_unit_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"^a duration must be a whole number of nanoseconds, not '0\.5ns'$"
    ):
        units.parse_duration_ns("0.5ns")


def test_a_negative_quantity_is_not_written() -> None:
    with pytest.raises(UsageError, match=r"^a size must be at least 0, not -1$"):
        units.format_bytes(-1)


def test_parts_and_factors_are_read_and_written_as_people_do() -> None:
    assert units.parse_percent("1%") == 0.01
    assert units.parse_percent("0.07%") == 0.0007
    assert units.parse_percent("100%") == 1.0
    assert units.format_percent(0.07) == "7%"
    assert units.format_percent(1e-7) == "0.00001%"
    assert units.parse_factor("2x") == 2.0
    assert units.format_factor(2.0) == "2x"
    assert units.format_factor(1.5) == "1.5x"


@given(st.floats(0.0, 1.0), st.floats(0.0, 1e6))
def test_parts_and_factors_read_back_as_the_same_float(part: float, factor: float) -> None:
    assert units.parse_percent(units.format_percent(part)) == part
    assert units.parse_factor(units.format_factor(factor)) == factor


@pytest.mark.parametrize("text", ["", "1", "%", "101%", "-1%", "1 %", "nan%"])
def test_a_part_that_is_none_is_refused_by_name(text: str) -> None:
    message = f"a percentage must be a number from 0 to 100 followed by %, not {text!r}"
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        units.parse_percent(text)


def test_parts_and_factors_out_of_range_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^a fraction must be between 0 and 1, not 1\.5$"):
        units.format_percent(1.5)
    with pytest.raises(UsageError, match=r"^a factor must be a number followed by x, not '2'$"):
        units.parse_factor("2")
    with pytest.raises(UsageError, match=r"^a factor must be finite and at least 0, not -1\.0$"):
        units.format_factor(-1.0)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (units.show_time(0), "0 s"),
        (units.show_time(850), "850 ns"),
        (units.show_time(999.6), "1 us"),
        (units.show_time(1_490_000), "1.49 ms"),
        (units.show_time(-2_500_000), "-2.5 ms"),
        (units.show_time(599_000_000_000), "599 s"),
        (units.show_time(600_000_000_000), "10 min"),
        (units.show_time(1e14), "27.8 h"),
        (units.show_moment(1_234_560_000_000), "1234.6 s"),
        (units.show_bytes(1023), "1023 B"),
        (units.show_bytes(6_687_648), "6.38 MiB"),
        (units.show_bytes(8 << 20), "8 MiB"),
        (units.show_bytes(1023.9 * 1024), "1 MiB"),
        (units.show_rate(12_910_000_000), "12.9 Gbit/s"),
        (units.show_rate(0), "0 bit/s"),
        (units.show_byte_rate(1_234_567_890), "1.23 GB/s"),
        (units.show_percent(0.1234), "12.3%"),
        (units.show_percent(0.0000123), "0.00123%"),
        (units.show_number(123456.7), "123457"),
        (units.show_number(float("inf")), "inf"),
        (units.count(1, "rank"), "1 rank"),
        (units.count(0, "rank"), "0 ranks"),
        (units.count(2, "microbatch", "microbatches"), "2 microbatches"),
    ],
)
def test_figures_for_people_have_three_digits_and_a_unit(shown: str, text: str) -> None:
    assert shown == text


@given(st.floats(1e-3, 1e20))
def test_a_figure_has_no_exponent_and_no_more_digits_than_three_or_those_before_the_point(
    value: float,
) -> None:
    for show in (units.show_time, units.show_bytes, units.show_rate, units.show_byte_rate):
        number, _, unit = show(value).partition(" ")
        assert re.fullmatch(r"\d+(\.\d+)?", number)
        assert unit
        assert "." not in number or len(number.replace(".", "").lstrip("0")) <= 3
