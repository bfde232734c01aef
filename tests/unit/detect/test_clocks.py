"""Tests of the estimated offset and drift between two clocks."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from slackline.detect import HealthOptions, Probe
from slackline.detect._clocks import Clocks
from slackline.detect._latency import Latency
from slackline.testing.simulated_network import MS, US, S


def _probes(count: int, offset_ns: int, drift: float, seed: int, there_ns: int = 0) -> list[Probe]:
    """Return probes every 50 ms that take 100 us in each direction (and `there_ns` more to the
    peer), with 50 us of jitter."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        sent = 5 * S + number * 50 * MS
        received = sent + 100 * US + there_ns + rng.randrange(50 * US)
        back = received + 100 * US + rng.randrange(50 * US)
        theirs = offset_ns + received + round(received * drift)
        made.append(Probe(sent, theirs, theirs, back))
    return made


@given(
    offset_ns=st.integers(-(10**15), 10**15),
    drift=st.floats(-200e-6, 200e-6),
    seed=st.integers(0, 1000),
)
@settings(max_examples=settings.default.max_examples // 4)
def test_the_drift_is_learned_whatever_the_offset(offset_ns: int, drift: float, seed: int) -> None:
    latency = Latency(HealthOptions())
    for probe in _probes(600, offset_ns, drift, seed):
        latency.take(probe)
    assert abs(latency.clocks.drift - drift) < 3e-6
    assert 100 * US <= latency.baseline_ns <= 150 * US
    assert not latency.there.cusum.active
    assert not latency.here.cusum.active


def test_half_of_the_round_trip_is_the_usual_as_the_halves_cannot_be_known() -> None:
    latency = Latency(HealthOptions())
    for probe in _probes(200, 0, 0.0, 1, there_ns=30 * MS):
        latency.take(probe)
    assert 15 * MS < latency.baseline_ns < 15.2 * MS


def test_the_line_is_fitted_and_then_followed() -> None:
    clocks = Clocks()
    for second in range(100):
        at_ns = second * S
        clocks.correct(at_ns, 1000.0 * second - clocks.offset(at_ns))
    assert abs(clocks.offset(100 * S) - 100_000) < 1
    assert abs(clocks.drift - 1e-6) < 1e-9


def test_no_clock_is_taken_to_drift_by_more_than_the_kernel_allows() -> None:
    clocks = Clocks()
    for second in range(10):
        clocks.correct(second * S, 30.0 * MS)
    assert clocks.drift <= 500e-6


def test_probes_that_came_together_count_once() -> None:
    latency = Latency(HealthOptions())
    probes = _probes(200, 0, 0.0, 1)
    for probe in probes:
        latency.take(probe)
    last = probes[-1].sent_ns
    paused_until = last + 450 * MS
    for number in range(1, 9):
        sent = last + number * 50 * MS
        latency.take(Probe(sent, paused_until, paused_until, paused_until + 100 * US))
    assert latency.there.cusum.calm


def test_an_old_probe_is_passed_over() -> None:
    latency = Latency(HealthOptions())
    probes = _probes(100, 0, 0.0, 1)
    for probe in probes + probes[-32:]:
        latency.take(probe)
    assert latency.last_ns == probes[-1].back_ns
