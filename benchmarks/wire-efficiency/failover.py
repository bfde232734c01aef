"""Records of a series of allreduces in which one of two NICs is cut, over slackline and over gloo.

plot.py draws the series.
"""

from __future__ import annotations

from datetime import timedelta

from _harness.ranks import LabRanks
from _harness.report import Row
from cases import Wire
from outages import CUT_NIC, DOWN_NS, SERIES_SIZE, UP_NS, series_passes, with_cut
from results import Results
from series import Series
from watch import plugged_again_at, unplugged_at

from slackline.lab import Lab

GLOO_TIMEOUT = timedelta(seconds=10)
"""The timeout of the gloo group that meets a NIC that stays down."""


def record(
    lab: Lab, wire: Wire, system: str, group: str, ranks: LabRanks, results: Results
) -> None:
    """Record the times of each allreduce at rank 0 while a NIC is cut and comes back."""
    size = SERIES_SIZE
    ranks.ask("prepare", size.count, size.buffers)
    # The first operations of a group open connections and choose plans.
    ranks.ask("stream", group, 1, 1, size.outstanding, 0)
    question = ("series", group, series_passes(wire), size.outstanding, 0)
    answers, samples = with_cut(lab, ranks, question, DOWN_NS, UP_NS)
    spans = answers[0]
    start_ns = spans[0].start_ns
    series = Series(
        system=system,
        nbytes=size.nbytes,
        down_ms=_ms(unplugged_at(samples, CUT_NIC) - start_ns),
        up_ms=_ms(plugged_again_at(samples, CUT_NIC) - start_ns),
        began_ms=[_ms(span.start_ns - start_ns) for span in spans],
        ended_ms=[_ms(span.end_ns - start_ns) for span in spans],
    )
    labels = {"what": "a series, a NIC is cut and comes back", "wire": str(wire)}
    results.recorded.append(series.row(labels))
    results.event(
        "a series, a NIC is cut and comes back: in short",
        {
            "before_MB_per_s": series.before,
            "while_down_MB_per_s": series.while_down,
            "after_MB_per_s": series.after,
            "longest_pause_ms": series.longest_pause_ms,
        },
        wire=str(wire),
        system=system,
        bytes=size.nbytes,
    )


def end_of_gloo(lab: Lab, wire: Wire, ranks: LabRanks, results: Results) -> None:
    """Measure how gloo ends if a NIC is cut and stays down."""
    size = SERIES_SIZE
    ranks.ask("open_gloo", GLOO_TIMEOUT)
    ranks.ask("prepare", size.count, size.buffers)
    question = ("series_to_error", "gloo", series_passes(wire), size.outstanding)
    answers, samples = with_cut(lab, ranks, question, DOWN_NS, None)
    failed_ns, error = min(answers)
    values = {
        "failed_after_s": round((failed_ns - unplugged_at(samples, CUT_NIC)) / 1e9, 3),
        "timeout_s": GLOO_TIMEOUT.total_seconds(),
        "error": error.splitlines()[0],
    }
    labels = {"what": "a NIC is cut and stays down", "wire": str(wire), "system": "gloo"}
    results.events.append(Row(labels={**labels, "bytes": size.nbytes}, values=values))


def _ms(time_ns: int) -> float:
    return round(time_ns / 1e6, 3)
