"""Tests of predictions for pipelines: schedules, delays and slow ranks."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest
from written_pipelines import REST_NS, WrittenPipeline, scenario
from written_runs import Written

from slackline import predict
from slackline.errors import UsageError
from slackline.plan.pipeline import Options, Order, generate
from slackline.predict._pipeline_model import apply_to_pipeline
from slackline.records import file_of
from slackline.sim import simulate

ACCEPTED = "a pipeline accepts schedule, latency, compute, delays of links, and rank N slow"


def makespan_ns(schedule: str, order: Order = "fixed", **given: float) -> float:
    plan = generate(schedule, scenario(**given), Options(full_backward=True))  # type: ignore[arg-type]
    run = simulate(plan, scenario(**given), order=order)  # type: ignore[arg-type]
    return run.makespan_ps / 1000 + REST_NS


def predicted(run: predict.PipelineRun, *changes: str) -> predict.Prediction:
    return predict.predict(run, [predict.parse_change(change) for change in changes])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> predict.PipelineRun:
    directory = tmp_path_factory.mktemp("pipeline")
    WrittenPipeline().write(directory)
    assert predict.has_pipeline(directory)
    return predict.load_pipeline(directory)


def test_the_plan_and_its_times_are_those_of_the_run(run: predict.PipelineRun) -> None:
    assert (run.plan.stages, run.plan.ranks, run.plan.microbatches) == (4, 4, 8)
    assert run.plan.programs == WrittenPipeline().plan.programs
    assert (run.policy, run.order, run.full_backward) == ("fixed", "fixed", True)
    assert run.peaks == (4, 3, 2, 1)
    assert len(run.steps) == 4
    for number, step in enumerate(run.steps, start=1):
        factor = 1 + Random(number).uniform(-0.05, 0.05)
        assert step.forward_ns == pytest.approx((4_000_000 * factor,) * 4, abs=2)
        assert step.input_ns == pytest.approx((4_000_000 * factor,) * 4, abs=2)
        assert (step.down_ns, step.up_ns) == ((2_000_000,) * 3, (2_000_000,) * 3)
        assert step.rest_ns == pytest.approx(REST_NS, abs=2)


def test_the_measured_step_is_predicted(run: predict.PipelineRun) -> None:
    found = predict.predict(run)
    assert min(run.wall_ns) - 10 <= found.p50_ns <= found.p95_ns <= max(run.wall_ns) + 10
    assert found.reason.startswith("Ranks compute nothing for ")


@pytest.mark.parametrize("schedule", ["gpipe", "zb-h1"])
def test_another_schedule_is_predicted(run: predict.PipelineRun, schedule: str) -> None:
    found = predicted(run, f"schedule {schedule}")
    assert found.p50_ns == pytest.approx(makespan_ns(schedule), rel=0.06)


def test_a_schedule_is_made_for_the_changed_delays(run: predict.PipelineRun) -> None:
    slow = predicted(run, "latency 20ms").p50_ns
    assert slow == pytest.approx(makespan_ns("1f1b", delay_ms=20.0), rel=0.06)
    better = predict.predict(run, predict.parse_changes("schedule auto memory 8; latency 20ms"))
    assert better.p50_ns < 0.8 * slow


def test_a_delay_of_one_link_is_added(run: predict.PipelineRun) -> None:
    plain = predict.predict(run).p50_ns
    both = predicted(run, "link 2-3 delay 5ms").p50_ns
    down = predicted(run, "link 2>3 delay 5ms").p50_ns
    elsewhere = predicted(run, "link 0-3 delay 5ms").p50_ns
    assert both > down > plain == elsewhere
    # The first activation and the last gradient pass the link one after the other.
    assert both - plain >= 10_000_000 - 10


def test_a_slow_rank_is_predicted(run: predict.PipelineRun) -> None:
    found = predicted(run, "rank 1 slow 2x")
    assert found.p50_ns >= 8 * 3 * 2 * 4_000_000 * 0.95
    assert found.warnings == ("the run was measured without this fault",)
    assert predicted(run, "compute x2").p50_ns > found.p50_ns


@pytest.mark.parametrize("policy", ["ready", "auto"])
def test_a_plan_that_follows_readiness_is_predicted(tmp_path: Path, policy: str) -> None:
    order: Order = "ready" if policy == "ready" else "planned"
    made = WrittenPipeline(
        schedule="zb-h1", policy=policy, order=order, full_backward=False, steps=6
    )
    made.write(tmp_path)
    run = predict.load_pipeline(tmp_path)
    assert (run.order, run.full_backward) == (order, False)
    found = predict.predict(run)
    assert found.p50_ns == pytest.approx(sorted(run.wall_ns)[2], rel=0.06)


@pytest.mark.parametrize(
    ("memory", "change", "caps"),
    [
        ("", "schedule ready", (None, None, None, None)),
        ("", "schedule 1f1b", (4, 3, 2, 1)),
        ("8", "schedule ready", (8, 8, 8, 8)),
        ("8,none,7/2,4", "schedule ready", (8, None, Fraction(7, 2), 4)),
        ("8,none,7/2,4", "schedule 1f1b", (8, 3, Fraction(7, 2), 4)),
        ("8", "schedule ready memory 5", (5, 5, 5, 5)),
    ],
)
def test_a_schedule_keeps_the_memory_of_the_run_unless_it_names_its_own(
    tmp_path: Path, memory: str, change: str, caps: tuple[predict.Cap, ...]
) -> None:
    made = WrittenPipeline(
        policy="ready",
        order="ready",
        settings={"schedule_memory": (memory, "environment" if memory else "default")},
    )
    made.write(tmp_path)
    run = predict.load_pipeline(tmp_path)
    setting, _ = apply_to_pipeline(run, [predict.parse_change(change)])
    assert setting.caps == caps


def test_a_schedule_that_the_memory_of_the_run_forbids_is_refused(tmp_path: Path) -> None:
    WrittenPipeline(settings={"schedule_memory": ("4", "argument")}).write(tmp_path)
    run = predict.load_pipeline(tmp_path)
    with pytest.raises(UsageError) as caught:
        predicted(run, "schedule gpipe")
    assert str(caught.value).splitlines()[0] == (
        f"{tmp_path} cannot have the change 'schedule gpipe': gpipe, 4 stages, 8 microbatches: "
        "stage 0, F4: needs 5 activations, but the cap is 4."
    )


@pytest.mark.parametrize(
    ("policy", "schedule", "order"),
    [
        ("fixed", "auto", "fixed"),
        ("fixed", "zb-h1", "fixed"),
        ("ready", "auto", "planned"),
        ("ready", "adaptra", "fixed"),
        ("auto", "zb-h1", "ready"),
    ],
)
def test_a_schedule_has_its_own_policy_unless_the_script_asked_for_a_fixed_order(
    tmp_path: Path, policy: str, schedule: str, order: str
) -> None:
    WrittenPipeline(policy=policy).write(tmp_path)
    run = predict.load_pipeline(tmp_path)
    setting, _ = apply_to_pipeline(run, [predict.Schedule(schedule, 8)])
    assert setting.order == order


@pytest.mark.parametrize(
    ("new_plans", "first", "steps"), [((3,), 4, 5), ((2, 5), 6, 3), ((7,), 1, 6), ((3, 8), 4, 4)]
)
def test_steps_before_a_new_plan_are_left_out(
    tmp_path: Path, new_plans: tuple[int, ...], first: int, steps: int
) -> None:
    made = WrittenPipeline(steps=9, policy="auto", order="planned", new_plans=new_plans)
    walls = made.write(tmp_path)
    assert predict.load_pipeline(tmp_path).wall_ns == tuple(walls[first : first + steps])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            "nics 2",
            ACCEPTED,
        ),
        ("rank 2 kill", ACCEPTED),
        ("rank 1 slow 2x from 3s", "a pipeline accepts faults that last all the time"),
        (
            "link 0-1 loss 1%",
            ACCEPTED,
        ),
        ("rank 7 slow 2x", "there is no rank 7 for 'rank 7 slow 2x': there are 4"),
        (
            "schedule zb-v",
            "the schedule zb-v places stages on ranks otherwise than the run does",
        ),
    ],
)
def test_a_change_that_a_pipeline_cannot_have_is_refused(
    run: predict.PipelineRun, change: str, reason: str
) -> None:
    with pytest.raises(UsageError) as caught:
        predicted(run, change)
    assert str(caught.value) == f"{run.name} cannot have the change {change!r}: {reason}"


def rewritten(directory: Path, rank: int, change: Sequence[tuple[str, str]]) -> None:
    path = file_of(directory, rank)
    text = path.read_text()
    for old, new in change:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def test_clocks_that_disagree_are_refused(tmp_path: Path) -> None:
    WrittenPipeline().write(tmp_path)
    rewritten(tmp_path, 2, [('"delays_ns":[2000000', '"delays_ns":[-2000000')])
    with pytest.raises(UsageError) as caught:
        predict.load_pipeline(tmp_path)
    assert "arrives on rank 2 2000000 ns before it is sent: the clocks of the ranks" in str(
        caught.value
    )


def test_a_missing_rank_is_refused(tmp_path: Path) -> None:
    WrittenPipeline().write(tmp_path)
    file_of(tmp_path, 1).unlink()
    with pytest.raises(UsageError) as caught:
        predict.load_pipeline(tmp_path)
    assert str(caught.value) == f"{tmp_path} has no telemetry of a rank with stage 1"


def test_replicas_are_refused(tmp_path: Path) -> None:
    WrittenPipeline().write(tmp_path)
    file_of(tmp_path, 4).write_text(file_of(tmp_path, 3).read_text())
    with pytest.raises(UsageError) as caught:
        predict.load_pipeline(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} has stage 3 on the ranks 3 and 4: replicas of a pipeline cannot be predicted"
    )


def test_steps_with_two_plans_are_not_mixed(tmp_path: Path) -> None:
    WrittenPipeline().write(tmp_path)
    for rank in range(4):
        path = file_of(tmp_path, rank)
        lines = path.read_text().splitlines()
        lines[-2] = lines[-2].replace('"plan":"1f1b"', '"plan":"gpipe"')
        path.write_text("\n".join(lines) + "\n")
    with pytest.raises(UsageError) as caught:
        predict.load_pipeline(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} has 0 successive steps at its end with the same plan on all ranks; at least 3 "
        "are needed"
    )


def test_a_data_parallel_run_has_no_pipeline(tmp_path: Path) -> None:
    Written(steps=3).write(tmp_path)
    assert not predict.has_pipeline(tmp_path)
    with pytest.raises(UsageError) as caught:
        predict.load_pipeline(tmp_path)
    assert str(caught.value) == f"{tmp_path}/rank-00000.jsonl has no steps of a pipeline"
