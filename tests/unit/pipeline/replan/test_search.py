"""Tests of the process that searches for plans, including its failure and its end."""

import os
import signal
import subprocess

from slackline.pipeline.replan._search import PlanSearch, _end
from slackline.plan.pipeline import (
    Options,
    PlanUpdate,
    Scenario,
    decode_updates,
    generate,
    vee,
)

MS = 10**9


def found(search, schedule, scenario, placement):
    search.start(schedule, scenario, placement, effort=0.1, reason="for a test")
    search.wait()
    return search.answer()


def test_the_process_finds_the_plan_that_this_process_would_find():
    search = PlanSearch()
    for placement in ((0, 1, 2, 3), vee(4)):
        scenario = Scenario.uniform(4, 6, (MS, MS, MS), cap=4).delayed(1, 3 * MS)
        data, error = found(search, "auto", scenario, placement)
        plan = generate("auto", scenario, Options(effort=0.1, placement=placement))
        assert error == ""
        assert decode_updates(data)[0] == PlanUpdate.of(plan, scenario, "for a test")
        assert not search.running


def test_a_scenario_without_a_plan_is_told_in_a_sentence():
    scenario = Scenario.uniform(4, 6, cap=1)
    data, error = found(PlanSearch(), "gpipe", scenario, (0, 1, 2, 3))
    assert data == b""
    assert error.splitlines()[0].startswith("gpipe, 4 stages, 6 microbatches: stage 0, F1")


def test_a_search_whose_process_is_killed_is_told_and_the_next_one_works():
    search, scenario = PlanSearch(), Scenario.uniform(2, 4)
    assert found(search, "1f1b", scenario, (0, 1))[1] == ""
    process = search._process
    process.send_signal(signal.SIGSTOP)
    search.start("1f1b", scenario, (0, 1), effort=1.0, reason="")
    assert search.running
    assert search.answer() is None
    os.kill(process.pid, signal.SIGKILL)
    search.wait()
    assert search.answer() == (b"", "the process that searches for plans ended with code -9")
    assert found(search, "1f1b", scenario, (0, 1))[1] == ""


def test_the_process_ends_with_its_owner():
    search = PlanSearch()
    found(search, "1f1b", Scenario.uniform(2, 4), (0, 1))
    process = search._process
    assert process.poll() is None
    del search
    assert process.poll() == -signal.SIGKILL


def test_a_process_ends_with_a_part_of_a_request_that_it_has_not_read():
    process = subprocess.Popen(["sleep", "100"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"the beginning of a request")
    _end(process)
    assert process.stdin.closed
    assert process.stdout.closed
    assert process.returncode == -signal.SIGKILL
