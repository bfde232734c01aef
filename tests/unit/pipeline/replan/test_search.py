"""Tests of the process that searches for plans, including its failure and its end."""

import os
import signal

from slackline.pipeline.replan._search import PlanSearch
from slackline.plan.pipeline import Options, PlanUpdate, Scenario, generate, vee

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
        assert PlanUpdate.decode(data) == PlanUpdate.of(plan, scenario, "for a test")
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
