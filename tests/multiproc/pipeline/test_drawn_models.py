"""Tests that models and loops drawn from seeds train in pipelines as they train in one process.

Whole models that DataParallel trains on two to four replicas are drawn too. `make campaign
SEEDS="17"` repeats the pipeline of seed 17, and `SEEDS="-18"` the replicas of seed 17.
"""

from datetime import timedelta
from functools import partial

import pytest
from drawn_ranks import train_in_job
from model_cases.draw import draw_case, draw_replicas
from model_cases.failures import report

QUICK = 100
ALL = 1500
QUICK_REPLICAS = 40
FEW = 3
"""The number of failed cases that a failed test makes smaller."""
SHRINKING = timedelta(seconds=60)


def check(job, cases):
    train = partial(train_in_job, job)
    failed = [(case, said) for case, said in zip(cases, train(cases), strict=True) if said]
    if failed:
        texts = [report(case, said, train, SHRINKING) for case, said in failed[:FEW]]
        texts += [f"seed {case.seed}: {said}" for case, said in failed[FEW:]]
        pytest.fail("\n".join(texts), pytrace=False)


@pytest.mark.timeout(900)
def test_drawn_models_get_the_results_of_one_process(job):
    pipelines = [draw_case(seed) for seed in range(QUICK)]
    check(job, pipelines + [draw_replicas(seed) for seed in range(QUICK_REPLICAS)])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(QUICK, ALL, QUICK))
def test_many_drawn_pipelines_get_the_results_of_one_process(job, first):
    check(job, [draw_case(seed) for seed in range(first, first + QUICK)])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(QUICK_REPLICAS, 5 * QUICK_REPLICAS, QUICK_REPLICAS))
def test_many_drawn_replicas_get_the_results_of_one_process(job, first):
    check(job, [draw_replicas(seed) for seed in range(first, first + QUICK_REPLICAS)])
