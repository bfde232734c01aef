"""Tests that a model is used only while it foretells better than the latest delay does."""

from random import Random

import pytest

from slackline.errors import UsageError
from slackline.pipeline.forecast import ForecastOptions, LinkHistory, Reading, foresee, observe

S = 10**9
MS = 10**6
OPTIONS = ForecastOptions()
AHEAD = 4
"""The number of seconds, and of readings, ahead of the latest reading that forecasts are for."""


def forecasts(delays_ms):
    """Return the forecast after each reading of a history with a reading each second, and the state
    after the last one."""
    state, found = LinkHistory(), []
    for second, delay in enumerate(delays_ms):
        state = observe(Reading(second * S, round(delay * MS)), state, OPTIONS)
        at = (second + AHEAD) * S
        state, forecast = foresee(at, at, state, OPTIONS)
        found.append(forecast)
    return found, state


READINGS, PERIOD, SLOW = 140, 20, 6


def congestion(readings):
    return [40 if place % PERIOD < SLOW else 0 for place in range(readings)]


@pytest.fixture(scope="module")
def periodic():
    """Provide the forecasts for a periodic delay, and the state after them."""
    return forecasts(congestion(READINGS))


def test_a_period_is_used_once_enough_changes_were_foretold_and_then_it_is_right(periodic):
    found, _ = periodic
    first = next(place for place, each in enumerate(found) if each.model)
    assert first < 5 * PERIOD
    assert {each.model for each in found[first:]} <= {"periodic", "bursts"}
    later = congestion(READINGS + AHEAD)[AHEAD:]
    assert [each.delay_ns // MS for each in found[first:]] == later[first:]
    last = found[-1]
    assert (last.model, last.delay_ns) == ("periodic", 40 * MS)
    assert last.reason == "Every 20 s the link slows by 40 ms for 6 s; the next time is in 1 s."


def test_a_quiet_link_and_a_new_one_have_no_forecast():
    found, _ = forecasts([5.0, 5.2, 4.9, 5.1] * 5)
    assert {each.model for each in found} == {""}
    assert found[0].reason == "Nothing can be foretold: there are only 1 reading."
    assert found[-1].reason == "Nothing can be foretold: the delay changed by 100 us only."
    assert [found[-1].low_ns, found[-1].delay_ns, found[-1].high_ns] == [5_100_000] * 3


@pytest.mark.parametrize(
    ("seed", "least_s"),
    [(0, 3), *(pytest.param(seed, 1 + seed % 3, marks=pytest.mark.slow) for seed in range(1, 9))],
)
def test_random_delays_are_not_foretold(seed, least_s):
    random, delays = Random(seed), []
    while len(delays) < 200:
        delays += [random.choice(range(0, 61, 10))] * random.randint(least_s, 10)
    assert {each.model for each in forecasts(delays)[0]} == {""}


def test_a_forecast_that_fails_twice_is_given_up_at_once(periodic):
    _, state = periodic
    found = []
    for second in range(READINGS, READINGS + 2):
        # The slow time that was foretold for this time does not come.
        state = observe(Reading(second * S, 0), state, OPTIONS)
        state, forecast = foresee((second + AHEAD) * S, (second + AHEAD) * S, state, OPTIONS)
        found.append(forecast)
    assert [each.model for each in found] == ["periodic", ""]
    assert found[1].delay_ns == 0
    assert found[1].reason == (
        "Nothing can be foretold: the latest forecasts of the model periodic were wrong."
    )


def test_the_interval_covers_the_errors_of_the_past():
    random = Random(5)
    delays = [max(0.0, each + random.uniform(-1, 1)) for each in congestion(READINGS + AHEAD)]
    found, _ = forecasts(delays[:READINGS])
    judged = [place for place, each in enumerate(found) if each.model]
    covered = [
        found[place].low_ns <= delays[place + AHEAD] * MS <= found[place].high_ns
        for place in judged
    ]
    assert len(judged) > 40
    assert 0.7 <= sum(covered) / len(covered) <= 1.0
    assert all(each.low_ns <= each.delay_ns <= each.high_ns for each in found)


def test_a_time_span_has_the_longest_delay_within_it(periodic):
    _, state = periodic
    # Slow times begin at 140 s and 160 s and last for 6 s. The latest reading is at 139 s.
    spans = [(147, 152), (156, 160), (156, 159)]
    assert [
        foresee(start * S, end * S, state, OPTIONS)[1].delay_ns // MS for start, end in spans
    ] == [0, 40, 0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda state: observe(Reading(5 * S, 0), state, OPTIONS),
            "readings must be in order of time: 5000000000 ns follows 5000000000 ns",
        ),
        (
            lambda state: observe(Reading(6 * S, -1), state, OPTIONS),
            "delay_ns must be at least 0, not -1",
        ),
        (
            lambda state: foresee(4 * S, 9 * S, state, OPTIONS),
            "the time span from 4000000000 ns to 9000000000 ns must lie after the latest reading, "
            "at 5000000000 ns",
        ),
        (
            lambda state: foresee(9 * S, 8 * S, state, OPTIONS),
            "the time span from 9000000000 ns to 8000000000 ns must lie after the latest reading, "
            "at 5000000000 ns",
        ),
        (lambda state: foresee(1, 2, LinkHistory(), OPTIONS), "a forecast needs a reading"),
        (lambda state: ForecastOptions(memory=0), "memory must be positive, not 0"),
        (lambda state: ForecastOptions(doubt=1.0), "doubt must be below 1, not 1.0"),
    ],
)
def test_a_wrong_value_is_refused_and_named(call, message):
    state = observe(Reading(5 * S, 0), LinkHistory(), OPTIONS)
    with pytest.raises(UsageError) as raised:
        call(state)
    assert str(raised.value) == message
