"""The panel of predicted step times, each beside the measured one."""

from typing import Any

from slackline.history import Job, Promised

__all__ = ["promises"]

_MOST = 50


def promises(job: Job) -> dict[str, Any]:
    """Return the predicted step times, the latest first, each with the median of its steps.

    `ratio` is the measured duration divided by the predicted one. `measured_ms` and `ratio` are
    None before the first step that began after the prediction.
    """
    found = [each for rank in job.ranks.values() for each in rank.promises]
    found.sort(key=lambda each: -each.promise.time_ns)
    return {"promises": [_row(each) for each in found[:_MOST]], "left_out": len(found[_MOST:])}


def _row(promised: Promised) -> dict[str, Any]:
    promise, measured_ns = promised.promise, promised.measured_ns
    return {
        "time_s": promise.time_ns / 1e9,
        "rank": promise.rank,
        "source": promise.source,
        "choice": promise.choice,
        "promised_ms": promise.wall_ns / 1e6,
        "measured_ms": None if measured_ns is None else measured_ns / 1e6,
        "steps": promised.count,
        "ratio": None if measured_ns is None else measured_ns / max(promise.wall_ns, 1),
    }
