"""Tests of a host's measured costs: the file, the errors in it, and the hosts drawn from it."""

import json
from pathlib import Path
from random import Random

import pytest

from slackline.cli import main
from slackline.errors import UsageError
from slackline.sim import HostCalibration, Spread, read_experiment

EXACT = HostCalibration(
    message_shm_ns=Spread(p50=2000, p95=2000),
    message_tcp_ns=Spread(p50=30_000, p95=30_000),
    byte_ps=Spread(p50=100, p95=100),
    wakeup_ns=Spread(p50=10_000, p95=10_000),
    reduce_byte_ps=Spread(p50=50, p95=50),
    compute_ns=Spread(p50=300_000, p95=300_000),
)
SPREAD = HostCalibration(
    message_shm_ns=Spread(p50=2000, p95=4000),
    message_tcp_ns=Spread(p50=30_000, p95=60_000),
    byte_ps=Spread(p50=100, p95=200),
    wakeup_ns=Spread(p50=10_000, p95=80_000),
    reduce_byte_ps=Spread(p50=50, p95=500),
    compute_ns=Spread(p50=300_000, p95=600_000),
)
COLLECTIVE = """
[hosts]
count = 4
rate = "8Gbit"
[collective]
plan = "ring"
size = "64KiB"
"""
TRAINING = """
[hosts]
count = 2
rate = "8Gbit"
frame = "0ns"
latency = "0ns"
reduce_bytes_per_second = "1000GB"
[training]
plan = "ring"
[[training.layer]]
forward = "1ms"
backward = "2ms"
gradient = "4B"
"""


def test_a_calibration_is_the_same_after_a_round_trip() -> None:
    assert HostCalibration.parse(SPREAD.to_json(), "host.json") == SPREAD


def test_costs_without_a_spread_are_the_measured_ones() -> None:
    costs = EXACT.draw(Random(0))
    assert costs.computing == 1.0
    host = costs.host
    assert (host.latency_ps, host.frame_ps) == (5_000_000, 15_000_000)
    assert (host.memory_latency_ps, host.memory_bytes_per_second) == (12_000_000, 10**10)
    assert host.reduce_bytes_per_second == 2 * 10**10


def test_draws_have_the_two_percentiles() -> None:
    chance = Random(3)
    drawn = sorted(Spread(p50=100, p95=400).draw(chance) for _ in range(20_000))
    assert abs(drawn[10_000] - 100) < 3
    assert abs(drawn[19_000] - 400) < 15


def test_percentiles_of_samples() -> None:
    samples = [float(value) for value in range(101)]
    assert Spread.of(samples[::-1]) == Spread(p50=50.0, p95=95.0)
    assert Spread.of([-3.0]) == Spread(p50=1.0, p95=1.0)


GOOD = json.loads(EXACT.to_json())
WRONG = [
    ("{", "host.json is not JSON"),
    ("[]", 'host.json is not of the kind "host calibration": doctor --save writes it'),
    ({**GOOD, "version": 2}, "host.json: version must be 1, not 2"),
    (
        {key: value for key, value in GOOD.items() if key != "byte_ps"},
        "host.json lacks 'byte_ps'",
    ),
    (
        {**GOOD, "news": 1},
        "host.json: there is no 'news'; known are message_shm_ns, message_tcp_ns, byte_ps, "
        "wakeup_ns, reduce_byte_ps, compute_ns",
    ),
    (
        {**GOOD, "byte_ps": 3},
        'host.json: byte_ps must have "p50" and "p95", not 3',
    ),
    (
        {**GOOD, "byte_ps": {"p50": 0, "p95": 1}},
        "host.json: byte_ps.p50 must be a positive number, not 0",
    ),
    (
        {**GOOD, "byte_ps": {"p50": 2, "p95": 1}},
        "host.json: byte_ps.p95 must be at least p50, 2, not 1",
    ),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_a_wrong_file_is_named_with_its_key(given: object, message: str) -> None:
    text = given if isinstance(given, str) else json.dumps(given)
    with pytest.raises(UsageError) as caught:
        HostCalibration.parse(text, "host.json")
    assert str(caught.value) == message


def test_values_of_the_experiment_replace_calibrated_ones() -> None:
    text = COLLECTIVE.replace('"8Gbit"', '"8Gbit"\nlatency = "7us"', 1)
    text += '[[host]]\nnumber = 2\nframe = "1us"\n'
    read = read_experiment(text, "a.toml", lambda: EXACT.draw(Random(0)))
    assert read.fabric is not None
    hosts = read.fabric.hosts
    assert {host.latency_ps for host in hosts} == {7_000_000}
    assert [host.frame_ps for host in hosts] == [15_000_000, 15_000_000, 1_000_000, 15_000_000]
    assert {host.reduce_bytes_per_second for host in hosts} == {2 * 10**10}


def test_ranks_compute_as_slowly_as_the_slowest_host() -> None:
    chance = Random(5)
    factors = [SPREAD.draw(Random(5)).computing]
    drawn = []

    def draw():
        drawn.append(SPREAD.draw(chance))
        return drawn[-1]

    (case,) = read_experiment(TRAINING, "a.toml", draw).cases
    assert drawn[0].computing == factors[0]
    slowest = max(costs.computing for costs in drawn)
    figures = case.simulate()
    assert figures["compute_ps"] == round(10**9 * slowest) + round(2 * 10**9 * slowest)


def test_an_experiment_without_hosts_takes_no_calibration() -> None:
    text = '[node]\nworkers = 2\nrate = "1Gbit"\n'
    with pytest.raises(UsageError) as caught:
        read_experiment(text, "a.toml", lambda: EXACT.draw(Random(0)))
    assert str(caught.value) == "a.toml: [node] has no hosts that a calibration could describe"


def test_results_have_a_median_and_a_95th_percentile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment, host = tmp_path / "a.toml", tmp_path / "host.json"
    experiment.write_text(COLLECTIVE)
    host.write_text(SPREAD.to_json())
    command = ["simulate", str(experiment), "--calibration", str(host), "--runs", "11", "--json"]
    assert main(command) == 0
    said = capsys.readouterr().out
    middle, late = json.loads(said)["cases"]
    assert (middle["name"], late["name"]) == ("ring, P50", "ring, P95")
    times = []
    for seed in range(11):
        chance = Random(seed)
        (case,) = read_experiment(COLLECTIVE, "a.toml", lambda c=chance: SPREAD.draw(c)).cases
        times.append(case.simulate()["time_ps"])
    times.sort()
    assert (middle["figures"]["time_ps"], late["figures"]["time_ps"]) == (times[5], times[10])
    assert times[5] < times[10]
    assert main(command) == 0
    assert capsys.readouterr().out == said


def test_a_single_run_has_no_percentiles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.toml"
    path.write_text(COLLECTIVE)
    assert main(["simulate", str(path), "--runs", "1"]) == 2
    assert "runs must be at least 2, not 1" in capsys.readouterr().err
    assert main(["simulate", str(path), "--calibration", str(tmp_path / "none.json")]) == 2
    assert "none.json: No such file or directory" in capsys.readouterr().err
