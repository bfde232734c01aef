import pytest
from _harness.summary import Summary, median_interval, percentile


def test_a_percentile_lies_between_its_neighbours() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile(list(range(11)), 10) == 1
    assert percentile(list(range(11)), 90) == 9


def test_one_value_is_every_percentile_of_itself() -> None:
    assert [percentile([7.0], percent) for percent in (0, 10, 50, 90, 100)] == [7.0] * 5


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match=r"^a percentile needs at least one value, not 0$"):
        percentile([], 50)


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(1, 1, 1), (5, 1, 5), (6, 1, 6), (20, 6, 15), (100, 40, 61), (2000, 956, 1045)],
)
def test_the_interval_of_a_median_has_the_ranks_of_the_binomial_distribution(
    count: int, low: int, high: int
) -> None:
    assert median_interval([float(value) for value in range(count, 0, -1)]) == (low, high)


def test_no_values_have_no_interval() -> None:
    with pytest.raises(ValueError, match=r"^an interval needs at least one value, not 0$"):
        median_interval([])


def test_a_summary_is_in_microseconds_and_keeps_the_number_of_rounds() -> None:
    summary = Summary.of_seconds([12e-6, 10e-6, 14e-6])
    assert summary.values() == {"median_us": 12.0, "p10_us": 10.4, "p90_us": 13.6, "rounds": 3}


def test_a_summary_is_written_in_the_unit_that_suits_it() -> None:
    assert str(Summary.of_seconds([12e-6])) == "12.0 us (12.0-12.0)"
    assert str(Summary.of_seconds([0.25])) == "250.0 ms (250.0-250.0)"
