"""Tests of the recorder of steps: the times of the training thread on a core."""

from slackline.overlap._recorder import Recorder
from slackline.records import CoreTimes, StepSummary


def test_a_step_has_the_growth_of_the_times_since_the_previous_call_of_step() -> None:
    told: list[StepSummary] = []
    times = iter([CoreTimes(1, 100), CoreTimes(8, 130), CoreTimes(9, 130), CoreTimes(29, 190)])
    recorder = Recorder(0, 0, told.append, core_times=lambda: next(times), clock=lambda: 0)
    for _ in range(3):
        recorder.stepped()
        recorder.settled()
    assert [(step.run_ns, step.run_delay_ns) for step in told] == [(7, 30), (1, 0), (20, 60)]


def test_without_a_reader_the_times_are_unknown_and_not_zero() -> None:
    told: list[StepSummary] = []
    recorder = Recorder(0, 0, told.append, clock=lambda: 0)
    recorder.stepped()
    recorder.settled()
    assert [(step.run_ns, step.run_delay_ns) for step in told] == [(None, None)]
