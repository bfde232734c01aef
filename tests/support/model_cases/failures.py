"""Failed cases: the search for a small case that fails alike, and the text of a report."""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from model_cases.cases import Case
from model_cases.shrink import smaller

__all__ = ["Train", "report", "shrink"]

Train = Callable[[Sequence[Case]], list[str]]
"""A function that trains cases and returns for each a text about what failed, or an empty text."""

AT_ONCE = 40
"""The number of variants of a case that are trained together."""


def shrink(case: Case, trouble: str, train: Train, limit: timedelta) -> tuple[Case, str]:
    """Return the smallest case found within the limit that fails in the same way, and its trouble.

    Each pass trains smaller variants of the case, and goes on with the first that fails alike.
    """
    began = time.monotonic()
    variants = list(smaller(case))
    while variants:
        if time.monotonic() - began > limit.total_seconds():
            break
        now, variants = variants[:AT_ONCE], variants[AT_ONCE:]
        for variant, said in zip(now, train(now), strict=True):
            if said and _kind(said) == _kind(trouble):
                case, trouble = variant, said
                variants = list(smaller(case))
                break
    return case, trouble


def report(case: Case, trouble: str, train: Train, limit: timedelta) -> str:
    """Return a text about a failed case: what failed, the drawn case, and a small one like it."""
    text = f"seed {case.seed}: {trouble}\n{case}\n"
    small, said = shrink(case, trouble, train, limit)
    if small != case:
        text += f"a smaller case fails alike: {said}\n{small}\n"
    return text


def _kind(trouble: str) -> str:
    """Return the kind of a failure: a missing gradient, another difference, or a type of error."""
    if trouble.startswith("result "):
        return "None" if ": None, not" in trouble else "difference"
    return trouble.partition(":")[0]
