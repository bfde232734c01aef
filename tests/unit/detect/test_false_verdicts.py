"""Tests that healthy traffic gives no verdict (report of a fault) under any jitter, pauses and
clocks."""

import random

import pytest

from slackline.detect import Tracker
from slackline.testing.simulated_network import (
    MS,
    US,
    Clock,
    Network,
    S,
    exponential,
    healthy,
    normal,
    pareto,
)

HOUR = 3600 * S

LAWS = {
    "normal": {"jitter": normal(100 * US)},
    "exponential": {"jitter": exponential(200 * US)},
    "a noisy host": {"jitter": exponential(5 * MS)},
    "a heavy tail": {"jitter": pareto(50 * US)},
    "bursts": {"jitter": exponential(50 * US), "burst_every_ns": 20 * S, "burst_ns": 200 * MS},
    "often": {"jitter": exponential(50 * US), "burst_every_ns": 2 * S, "burst_ns": 150 * MS},
}


def pauses(seed: int, ranks: int, until_ns: int) -> dict[int, list[tuple[int, int]]]:
    """Return pauses in which every rank stands still for 20 to 400 ms about every five seconds."""
    rng = random.Random(seed)
    made = {}
    for rank in range(ranks):
        time, made[rank] = 0, []
        while time < until_ns:
            begin = time + round(rng.expovariate(1 / (5 * S)))
            time = begin + rng.randrange(20 * MS, 400 * MS)
            made[rank].append((begin, time))
    return made


def verdicts(network: Network, until_ns: int) -> list[str]:
    said = []
    for rank in range(network.ranks):
        tracker = Tracker(network.clocks[rank].read(0))
        for now_ns, samples in network.samples(rank, until_ns):
            said += [verdict.reason for verdict in tracker.take(now_ns, samples)]
    return said


QUICK = ("exponential", "a heavy tail", "bursts")


@pytest.mark.parametrize(
    "law", [pytest.param(law, marks=[pytest.mark.slow] * (law not in QUICK)) for law in LAWS]
)
def test_two_minutes_of_healthy_traffic_give_no_verdict(law: str) -> None:
    assert verdicts(healthy(4, 11, **LAWS[law]), 120 * S) == []


def test_pauses_of_ranks_give_no_verdict() -> None:
    network = healthy(4, 11)
    network.pauses = pauses(11, 4, 120 * S)
    assert verdicts(network, 120 * S) == []


def test_pauses_give_no_verdict_either_when_many_probes_are_on_their_way() -> None:
    network = healthy(4, 12)
    network.several_on_their_way = True
    network.pauses = pauses(12, 4, 120 * S)
    assert verdicts(network, 120 * S) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [0])
@pytest.mark.parametrize("law", LAWS)
def test_an_hour_of_healthy_traffic_gives_no_verdict(law: str, seed: int) -> None:
    assert verdicts(healthy(4, seed, **LAWS[law]), HOUR) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [0])
def test_an_hour_with_pauses_of_ranks_gives_no_verdict(seed: int) -> None:
    network = healthy(4, seed)
    network.pauses = pauses(seed, 4, HOUR)
    assert verdicts(network, HOUR) == []


@pytest.mark.parametrize(
    ("drift", "offset_ns"), [(-50e-6, 0), (50e-6, 1000 * HOUR), (400e-6, -5 * HOUR)]
)
def test_clocks_that_drift_and_differ_by_hours_give_no_verdict(
    drift: float, offset_ns: int
) -> None:
    network = healthy(2, 3)
    network.clocks = [Clock(offset_ns=200 * HOUR), Clock(offset_ns + 200 * HOUR, drift)]
    assert verdicts(network, 120 * S) == []


class SteppingClock(Clock):
    """A clock that jumps forward by a second after 30 s, and drifts in the other direction after 60
    s."""

    def read(self, time_ns: int) -> int:
        jump = S if time_ns > 30 * S else 0
        bend = round((time_ns - 60 * S) * -100e-6) if time_ns > 60 * S else 0
        return super().read(time_ns) + jump + bend


def test_a_clock_that_is_set_or_slewed_gives_no_verdict() -> None:
    network = healthy(2, 3)
    network.clocks = [Clock(), SteppingClock(drift=50e-6)]
    assert verdicts(network, 120 * S) == []


def test_a_slow_drift_of_the_path_is_followed() -> None:
    network = healthy(2, 3)
    network.directions[0, 1].delay = network.directions[1, 0].delay = lambda t: t // 100_000
    assert verdicts(network, 300 * S) == []
