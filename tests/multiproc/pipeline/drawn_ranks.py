"""Jobs that train drawn cases: the function of the ranks, and the function that starts a job."""

import json
import os
from datetime import timedelta

from drawn.cases import read_case
from drawn.draw import draw_case
from drawn.lanes import RANKS, train_cases

_CASES = "DRAWN_CASES"
"""The variable that holds a job's cases: a JSON list of seeds, and of texts of other cases."""
_ENOUGH = timedelta(minutes=9)
"""A limit for the whole job, so long that only a rank that hangs reaches it."""


def drawn_models(rank, size):
    given = json.loads(os.environ[_CASES])
    cases = [draw_case(each) if isinstance(each, int) else read_case(each) for each in given]
    return train_cases(cases, rank, size)


def train_in_job(job, cases):
    """Train the cases in one job of four ranks; return for each a text about what failed."""
    given = [case.seed if case == draw_case(case.seed) else repr(case) for case in cases]
    found = job(
        RANKS,
        drawn_models,
        environment={_CASES: json.dumps(given)},
        timeout=_ENOUGH,
        seconds=_ENOUGH.total_seconds(),
    )
    assert found[1:] == found[:1] * (RANKS - 1)
    return found[0]
