"""Tests that results are bit-identical to those of one process in every schedule and network."""

import re

import pytest
from pipeline_models import (
    many_steps,
    plans_made_ahead,
    plans_that_follow,
    several_stages_that_follow,
)
from pipeline_work import carried, one_stage_a_rank, several_stages_a_rank

from slackline.history import read_directory, read_file
from slackline.records import Decision, Promise, file_of

SLOW = pytest.mark.slow
WIRES = {
    "shm": {},
    "tcp": {"SLACKLINE_RAILS": "tcp"},
    "slow": {"SLACKLINE_FAULTS": "link 1-2 delay 5ms jitter 4ms seed 1; link 1>0 delay 3ms"},
    "udp that loses": {"SLACKLINE_RAILS": "udp", "SLACKLINE_FAULTS": "link 0-1 loss 2% seed 1"},
}


@pytest.mark.parametrize(
    "wire",
    [*(pytest.param(wire, marks=SLOW) for wire in ("shm", "tcp", "slow")), "udp that loses"],
)
def test_every_schedule_and_policy_gives_the_gradients_of_one_process(job, wire):
    job(3, one_stage_a_rank, environment=WIRES[wire])


ANYTHING = [
    f"{effect} over {rails}"
    for rails in ("shm", "tcp", "udp")
    for effect in ("delay 20ms jitter 15ms seed 3", "rate 20Mbit", "down from 50ms for 300ms")
] + ["loss 3% duplicate 3% reorder 3% corrupt 1% seed 5 over udp", "corrupt 1% seed 6 over tcp"]


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ANYTHING)
@pytest.mark.parametrize("work", [one_stage_a_rank, several_stages_a_rank])
def test_in_any_trouble_the_gradients_are_those_of_one_process(job, trouble, work):
    effects, _, rails = trouble.rpartition(" over ")
    fault = f"link 0-1 {effects}; link 1-2 {effects}"
    environment = {"SLACKLINE_RAILS": rails, "SLACKLINE_FAULTS": fault}
    job(3, work, environment=environment)


@pytest.mark.parametrize("wire", [pytest.param("shm", marks=SLOW), "tcp"])
def test_several_stages_a_rank_give_the_gradients_of_one_process(job, wire):
    job(2, several_stages_a_rank, environment=WIRES[wire])


def test_all_ranks_change_their_plans_at_the_same_step_and_for_the_same_reason(job, tmp_path):
    environment = {
        "SLACKLINE_FAULTS": "link 1-2 delay 30ms",
        "SLACKLINE_TELEMETRY": str(tmp_path),
    }
    found = job(3, plans_that_follow, environment=environment)
    assert found[1:] == found[:1] * 2
    for plans, changes in found[0]:
        for step, change in enumerate(changes[1:], start=1):
            assert (plans[step] != plans[step - 1]) <= bool(change)
            assert plans[step] != plans[step - 1] or not change or "a trial" in change
    reasons = []
    for name, (_, changes) in zip(("auto", "adaptra"), found[0], strict=True):
        reasons.append(f'"{name}" was asked for; the policy "{name}" follows from the schedule')
        reasons += [change for change in changes if change]
    promises = [each for each in read_directory(tmp_path) if isinstance(each, Promise)]
    assert {(each.rank, each.source) for each in promises} == {(0, "schedule")}
    # The two steps that measure backwards in one piece have no plan of their own.
    of_plans = [each for _, changes in found[0] for each in changes if "in one piece" not in each]
    assert len(promises) >= sum(map(bool, of_plans))
    # An activation and a gradient cross the slow link, with twice the delay that a reason names.
    # Half of that may be missing: other steps have had other waits for a core, which do not count.
    named_ms = [float(each) for each in re.findall(r"link 1-2 has ([\d.]+) ms", str(of_plans))]
    assert min(each.wall_ns for each in promises) >= min(named_ms) * 1e6
    for rank in range(3):
        records = read_file(file_of(tmp_path, rank))
        made = [record for record in records if isinstance(record, Decision)]
        of_schedules = [record for record in made if record.subject == "schedule"]
        assert [record.reason for record in of_schedules] == reasons
        head = "3 stages, 12 microbatches; forwards before the first backward: "
        assert all(head in record.choice for record in of_schedules)
        assert of_schedules[0].choice.startswith("auto, 3 stages")


@pytest.mark.slow
def test_all_ranks_adopt_a_plan_that_is_made_ahead_of_a_periodic_delay(job, tmp_path):
    slow = [f"link 1-2 delay 30ms from {3 * turn}s for 1s" for turn in range(1, 30)]
    environment = {
        "SLACKLINE_FAULTS": "; ".join(slow),
        "SLACKLINE_RAILS": "tcp",
        "SLACKLINE_TELEMETRY": str(tmp_path),
    }
    found = job(3, plans_made_ahead, environment=environment)
    assert found[1:] == found[:1] * 2
    reason = found[0][-1][1]
    assert reason.startswith("link 1-2 is expected to have ")
    decisions = [
        record
        for record in read_file(file_of(tmp_path, 0), pytest.fail)
        if isinstance(record, Decision) and record.subject == "forecast"
    ]
    assert decisions
    assert {each.choice.partition(":")[0] for each in decisions} <= {"link 0-1", "link 1-2"}


@pytest.mark.slow
def test_plans_of_several_stages_a_rank_follow_a_slow_link(job):
    found = job(
        2, several_stages_that_follow, environment={"SLACKLINE_FAULTS": "link 0-1 delay 30ms"}
    )
    assert found[0] == found[1]
    name, plans, changes = found[0]
    assert name == "auto"
    for step, change in enumerate(changes[1:], start=1):
        assert (plans[step] != plans[step - 1]) <= bool(change)
        assert plans[step] != plans[step - 1] or not change or "a trial" in change


@pytest.mark.parametrize("wire", [pytest.param("shm", marks=SLOW), "slow"])
def test_whoever_carries_the_messages_the_bits_are_the_same(job, wire):
    job(3, carried, environment=WIRES[wire])


@pytest.mark.parametrize("kind", ["tcp", pytest.param("udp", marks=SLOW)])
def test_a_rail_that_is_cut_in_the_middle_of_a_step_changes_no_bit(job, kind):
    environment = {
        "SLACKLINE_RAILS": kind,
        "SLACKLINE_INTERFACE": "127.0.1.1/24,127.0.2.1/24",
        "SLACKLINE_FAULTS": "nic 0.1 down from 60ms; link 1-2 delay 2ms",
    }
    lost = job(3, many_steps, environment=environment)
    assert lost[0] > 0
