"""Tests that each model finds what its history has, and says it in a sentence."""

import numpy as np
import pytest

from slackline.pipeline.forecast._bursts import fit_bursts
from slackline.pipeline.forecast._drift import fit_drift
from slackline.pipeline.forecast._history import History, Reading
from slackline.pipeline.forecast._periodic import fit_periodic

S = 10**9
MS = 10**6


def history(delays_ms, interval_s=1.0):
    """Return the history of delays that were measured in equal intervals."""
    return History.of(
        [
            Reading(round(place * interval_s * S), round(delay * MS))
            for place, delay in enumerate(delays_ms)
        ]
    )


def congestion(readings, period, length, delay_ms):
    """Return delays that last for the first `length` of every `period` readings."""
    return [delay_ms if place % period < length else 0 for place in range(readings)]


def test_one_outlier_does_not_count():
    found = history([0, 0, 0, 90, 0, 0, 30, 30, 30])
    assert found.delays_ms.tolist() == [0, 0, 0, 0, 0, 0, 30, 30, 30]
    assert found.seconds.tolist() == [-8, -7, -6, -5, -4, -3, -2, -1, 0]
    assert found.swing_ms == 30


def test_readings_at_uneven_times_lie_on_a_regular_grid():
    times_s = (0, 1, 2, 3, 6, 7)
    readings = [Reading(at * S, at * 10 * MS) for at in times_s]
    interval, values = History.of(readings).regular()
    assert interval == 1.0
    # The delay of the reading at 0 s is the median of 0, 0 and 10 ms.
    assert values.tolist() == [0, 10, 20, 30, 30, 60, 60, 70]


def test_a_period_is_found_and_told():
    # The link was slow at 0, 40, 80 and 120 s; the latest reading is at 157 s.
    found = fit_periodic(history(congestion(158, 40, 5, 30)))
    assert found.period == 40.0
    assert found.at(np.array([1.0, 2, 3, 7, 8, 42, 43])).tolist() == [0, 0, 30, 30, 0, 0, 30]
    assert found.sentence() == (
        "Every 40 s the link slows by 30 ms for 5 s; the next time is in 3 s."
    )


def test_a_slow_time_that_has_begun_is_told_with_its_end():
    found = fit_periodic(history(congestion(162, 40, 5, 30)))
    assert found.sentence() == (
        "Every 40 s the link slows by 30 ms for 5 s; this time ends in 4 s."
    )


def test_a_period_between_two_readings_is_found_from_its_multiples():
    interval, period = 0.4, 9.1
    delays = [60 if (place * interval) % period < 3 else 0 for place in range(400)]
    found = fit_periodic(history(delays, interval))
    assert found.period == pytest.approx(period, abs=0.02)


def test_a_wave_is_foretold_by_the_wave_before():
    wave = [20 + 20 * np.sin(2 * np.pi * place / 50) for place in range(300)]
    found = fit_periodic(history(wave))
    assert found.period == 50.0
    ahead = np.arange(1.0, 50)
    expected = 20 + 20 * np.sin(2 * np.pi * (299 + ahead) / 50)
    # The median of three readings cuts each peak by 0.16 ms.
    assert np.abs(found.at(ahead) - expected).max() < 0.17


@pytest.mark.parametrize("delays", [[0] * 50, congestion(50, 40, 5, 30), list(range(50))])
def test_a_history_without_a_repetition_has_no_period(delays):
    assert fit_periodic(history(delays)) is None


def test_a_drift_is_the_slope_of_the_latest_readings():
    found = fit_drift(history([10 + 0.5 * place for place in range(40)]))
    assert found.slope == pytest.approx(0.5)
    assert found.at(np.array([0.0, 10.0])) == pytest.approx([29.5, 34.5])
    assert found.sentence() == "The delay of the link is 29.5 ms and rises by 30 ms a minute."


def test_a_falling_delay_ends_at_zero():
    found = fit_drift(history([20 - place for place in range(20)]))
    assert found.at(np.array([100.0])).tolist() == [0]
    assert "falls by 60 ms a minute" in found.sentence()


def test_noise_has_no_drift():
    noise = np.random.default_rng(1).normal(20, 1, 40)
    assert fit_drift(history(noise)) is None


def test_bursts_end_when_most_of_the_earlier_bursts_had_ended():
    lengths = (5, 6, 7, 8)
    delays = [delay for each in lengths for delay in [0] * 20 + [40] * each] + [0] * 20 + [40] * 3
    found = fit_bursts(history(delays))
    assert found.slow
    # The burst began half a second before its first reading.
    assert found.age == 2.5
    assert found.lengths.tolist() == [5, 6, 7, 8]
    # Three of the four bursts outlast 5.5 s, half of them 6.5 s, one 7.5 s.
    assert found.at(np.array([1.0, 3.0, 4.0, 5.0])).tolist() == [40, 40, 40, 0]
    assert found.sentence() == (
        "The link is slow for 5 s to 8 s each time, now for 2.5 s; the delay then changes to 0 s."
    )


def test_the_next_burst_is_foretold_from_the_time_since_the_last():
    delays = [0] * 10 + ([40] * 4 + [0] * 10) * 4
    found = fit_bursts(history(delays))
    assert not found.slow
    assert found.age == 9.5
    assert found.at(np.array([0.25, 1.0])).tolist() == [0, 40]


def test_bursts_need_three_earlier_ones():
    assert fit_bursts(history([0] * 10 + ([40] * 4 + [0] * 10) * 2 + [40] * 2)) is None
