"""Tests that models and loops drawn from seeds train in a pipeline as they train in one process.

`python benchmarks/campaigns/campaign.py models --seeds 17` repeats the seed 17.
"""

from datetime import timedelta
from functools import partial

import pytest
from drawn.draw import draw_case
from drawn.failures import report
from drawn_ranks import train_in_job

QUICK = 100
ALL = 1500
FEW = 3
"""The number of failed cases that a failed test makes smaller."""
SHRINKING = timedelta(seconds=60)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "first",
    [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(QUICK, ALL, QUICK))],
)
def test_drawn_models_get_the_results_of_one_process(job, first):
    cases = [draw_case(seed) for seed in range(first, first + QUICK)]
    train = partial(train_in_job, job)
    failed = [(case, said) for case, said in zip(cases, train(cases), strict=True) if said]
    if failed:
        texts = [report(case, said, train, SHRINKING) for case, said in failed[:FEW]]
        texts += [f"seed {case.seed}: {said}" for case, said in failed[FEW:]]
        pytest.fail("\n".join(texts), pytrace=False)
