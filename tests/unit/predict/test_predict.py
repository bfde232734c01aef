"""Tests that predictions are those of the same run, simulated under the changed conditions."""

import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from written_runs import Written

from slackline import predict
from slackline.errors import UsageError
from slackline.predict._setting import apply

SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def made() -> Written:
    return Written()


@pytest.fixture(scope="module")
def run(made: Written, tmp_path_factory: pytest.TempPathFactory) -> predict.Run:
    directory = tmp_path_factory.mktemp("run")
    made.write(directory)
    return predict.load(directory)


def predicted(run: predict.Run, *changes: str) -> predict.Prediction:
    return predict.predict(run, [predict.parse_change(change) for change in changes], samples=32)


def median_ns(steps_ps: tuple[int, ...]) -> float:
    return statistics.median(steps_ps) / 1000


def test_without_changes_the_measured_step_is_predicted(run: predict.Run) -> None:
    found = predict.predict(run)
    assert found.p50_ns == pytest.approx(statistics.median(run.wall_ns), rel=0.02)
    assert min(run.wall_ns) < found.p50_ns <= found.p95_ns <= 1.01 * max(run.wall_ns)
    assert found.warnings == ()


@pytest.mark.parametrize(
    "rate_mbit", [pytest.param(100, marks=SLOW), pytest.param(300, marks=SLOW), 400]
)
def test_a_rate_is_predicted(made: Written, run: predict.Run, rate_mbit: int) -> None:
    truth = median_ns(made.simulate(rate_bps=rate_mbit * 10**6).step_ps)
    assert predicted(run, f"rate {rate_mbit}Mbit").p50_ns == pytest.approx(truth, rel=0.02)


@pytest.mark.parametrize("hosts", [3, pytest.param(6, marks=SLOW)])
def test_a_number_of_hosts_is_predicted(made: Written, run: predict.Run, hosts: int) -> None:
    truth = median_ns(made.simulate(ranks=hosts).step_ps)
    assert predicted(run, f"hosts {hosts}").p50_ns == pytest.approx(truth, rel=0.02)
    by_ranks, by_hosts = predicted(run, f"ranks {hosts}"), predicted(run, f"hosts {hosts}")
    assert (by_ranks.p50_ns, by_ranks.p95_ns) == (by_hosts.p50_ns, by_hosts.p95_ns)


def test_a_plan_is_predicted(run: predict.Run) -> None:
    direct = Written(plan="direct").simulate()
    assert predicted(run, "plan direct").p50_ns == pytest.approx(
        median_ns(direct.step_ps), rel=0.02
    )


def test_a_latency_is_predicted(run: predict.Run) -> None:
    truth = median_ns(Written(one_way_ns=5_000_000).simulate().step_ps)
    assert predicted(run, "latency 5ms").p50_ns == pytest.approx(truth, rel=0.02)


def test_faster_computation_is_predicted(run: predict.Run) -> None:
    truth = median_ns(Written(backward_ms=4.0).simulate().step_ps)
    # The millisecond before and the half millisecond after the passes are halved, too.
    assert predicted(run, "compute x0.5").p50_ns == pytest.approx(truth - 750_000, rel=0.03)


def test_one_group_is_predicted(run: predict.Run) -> None:
    """Reduce all gradients at once: computation and communication then alternate."""
    one = predicted(run, "bucket 1MiB")
    three = predicted(run)
    wire_ns = 8e9 * 1.5 * (1 << 20) * 1514 / 1448 / 200e6
    computed_ns = statistics.mean(
        rank.total_ns - rank.before_ns - rank.after_ns for step in run.steps for rank in step.ranks
    )
    assert one.p50_ns > three.p50_ns
    assert one.p50_ns == pytest.approx(wire_ns + computed_ns, rel=0.08)


def test_smaller_groups_than_measured_are_cut_with_a_warning(run: predict.Run) -> None:
    found = predicted(run, "bucket 64KiB")
    assert found.warnings == (
        "gradients inside the measured groups, the smallest of 256 KiB, are not known: each longer "
        "group is cut into equal parts",
    )
    assert found.p50_ns < predicted(run).p50_ns


def test_two_nics_take_half_of_the_bytes_each(made: Written, run: predict.Run) -> None:
    both = predicted(run, "nics 2")
    assert both.p50_ns == pytest.approx(predicted(run, "rate 400Mbit").p50_ns, rel=0.05)
    assert both.warnings == ("the run had 1 NIC a host",)


@pytest.mark.parametrize(
    ("change", "bucket"),
    [
        ("rate 4Gbit", 52_500),
        ("nics 2", 16_384),
        ("nic 1.0 rate 50Mbit", 16_384),
        ("latency 5ms", 0),
        ("link 2-3 delay 5ms", 0),
    ],
)
def test_a_lab_changes_its_token_buckets_with_its_rate_and_its_switch(
    run: predict.Run, change: str, bucket: int
) -> None:
    in_lab = replace(run, burst_bytes=16 << 10, nominal_bps=2 * 10**8)
    setting, _ = apply(in_lab, [predict.parse_change(change)])
    assert setting.burst_bytes == bucket
    assert apply(run, [predict.parse_change(change)])[0].burst_bytes == 0


def test_a_slow_rank_is_predicted(run: predict.Run) -> None:
    found = predicted(run, "rank 2 slow 4x")
    computed_ns = statistics.mean(step.ranks[2].total_ns for step in run.steps)
    assert found.p50_ns > 4 * 0.9 * computed_ns


def test_equal_seeds_give_equal_predictions(run: predict.Run) -> None:
    five, again, six = (predict.predict(run, samples=8, seed=seed) for seed in (5, 5, 6))
    assert five == again != six


def test_the_spread_of_computations_is_in_the_prediction(tmp_path: Path) -> None:
    Written(spread=0.0, sizes=(1 << 12,)).write(tmp_path / "even")
    Written(spread=0.4, sizes=(1 << 12,), steps=30).write(tmp_path / "uneven")
    even, uneven = (predict.predict(predict.load(tmp_path / name)) for name in ("even", "uneven"))
    assert even.p95_ns == pytest.approx(even.p50_ns, rel=0.01)
    assert uneven.p95_ns > 1.05 * uneven.p50_ns


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        pytest.param("hosts 16", "the number of hosts is 16, and 4 was measured", marks=SLOW),
        ("latency 1us", "the latency is 1 us, and 100 us was measured"),
        ("plan star", "the run had no all_reduce with the plan star"),
        ("compute x0.1", "computation changes by a factor of 10"),
        ("nic 1.0 rate 50Mbit", "the run was measured without this fault"),
    ],
)
def test_a_value_far_from_measured_ones_has_a_warning(
    run: predict.Run, change: str, warning: str
) -> None:
    assert warning in predicted(run, change).warnings


def test_the_reason_names_the_limit(run: predict.Run) -> None:
    found = predicted(run).reason
    assert re.fullmatch(r"The wire is busy 8\d% of the step\.", found)
    faster = predicted(run, "rate 2Gbit")
    assert faster.reason.startswith(f'{found} With "rate 2Gbit" the step is shorter by ')
    assert faster.warnings[1] == "the rate is 2 Gbit/s, and 200 Mbit/s was measured"


def test_hidden_communication_is_named(tmp_path: Path) -> None:
    Written(sizes=(1 << 12, 1 << 12), spread=0.0).write(tmp_path)
    run = predict.load(tmp_path)
    reason = predicted(run).reason
    assert reason.startswith("Computation hides the communication: ranks wait ")
    assert predicted(run, "rate 10Gbit").reason == (
        f'{reason} "rate 10Gbit" changes the step by less than 2%.'
    )


def test_a_prediction_needs_a_step(run: predict.Run) -> None:
    with pytest.raises(UsageError) as caught:
        predict.predict(run, samples=0)
    assert str(caught.value) == "samples must be a positive integer, not 0"
