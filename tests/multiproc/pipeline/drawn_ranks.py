"""Jobs that train drawn cases: the function of the ranks, and the function that starts a job."""

import json
import os
from datetime import timedelta

from model_cases.cases import read_case
from model_cases.draw import draw_case, draw_replicas
from model_cases.lanes import RANKS, train_cases

_CASES = "DRAWN_CASES"
"""The variable that holds a job's cases: a JSON list of seeds, and of texts of other cases.

The cases of negative numbers are those of `draw_replicas`: -1 is the case of its seed 0.
"""
_ENOUGH = timedelta(minutes=9)
"""A limit for the whole job, so long that only a rank that hangs reaches it."""


def _case_of(given):
    if isinstance(given, str):
        return read_case(given)
    return draw_case(given) if given >= 0 else draw_replicas(-1 - given)


def _name_of(case):
    """Return the number that names a drawn case, or the text of any other case."""
    number = -1 - case.seed if case.wrapped else case.seed
    return number if _case_of(number) == case else repr(case)


def drawn_models(rank, size):
    cases = [_case_of(each) for each in json.loads(os.environ[_CASES])]
    return train_cases(cases, rank, size)


def train_in_job(job, cases):
    """Train the cases in one job of four ranks; return for each a text about what failed."""
    found = job(
        RANKS,
        drawn_models,
        environment={_CASES: json.dumps([_name_of(case) for case in cases])},
        timeout=_ENOUGH,
        seconds=_ENOUGH.total_seconds(),
    )
    assert found[1:] == found[:1] * (RANKS - 1)
    return found[0]
