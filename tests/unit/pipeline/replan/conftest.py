"""Fixtures for tests of the choice of a plan during training."""

import pytest

from slackline.pipeline.replan._trial import LATER, Trial


@pytest.fixture
def run_trial():
    """Return a function that runs a trial of plans to its end on given times.

    It takes the plans and a function `time_of(name, step)`, which returns the time of a step in
    nanoseconds and is called once for each step, in order. A time is known two steps later. The
    function returns the trial, and the names of the plans by step.
    """

    def run(updates, time_of):
        trial, seen, under_way = Trial(updates), [], []
        while trial.winner is None:
            if len(under_way) == LATER:
                candidate, elapsed_ns = under_way.pop(0)
                if candidate is not None:
                    candidate.step_ns.append(elapsed_ns)
            candidate, counts = trial.next()
            name = candidate.update.plan.name
            under_way.append((candidate if counts else None, time_of(name, len(seen))))
            seen.append(name)
        return trial, seen

    return run
