"""Measurements of outages: one of two NICs is cut in an allreduce, or is cut and comes back."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence

from _harness.ideal import allreduce_seconds, seconds_with_cut
from _harness.ranks import LabRanks
from _harness.summary import percentile
from cases import (
    CUT_OVER_ALLOWED,
    HOSTS,
    RECOVERED_SHARE,
    RECOVERY_SECONDS,
    SIZES,
    Wire,
)
from results import Results
from watch import plugged_again_at, unplugged_at

from slackline.faults import parse_all
from slackline.lab import Lab
from slackline.units import format_duration_ns

CUT_HOST, CUT_NIC = 1, 1
LEAD_NS = 1_000_000_000
"""The time in ns between the main process's request and the moment at which the ranks begin."""
SERIES_SIZE = SIZES[1]
SERIES_SECONDS = 8.0
"""The time in seconds that the series would take on both NICs."""
DOWN_NS, UP_NS = 2_500_000_000, 4_500_000_000
"""The times in ns of a NIC's cut and of its return, from the start of the series."""
SETTLE_SECONDS = 20.0
WINDOW = 4
"""The number of allreduces over which the throughput of the series is averaged."""


def cut_in_the_middle(
    lab: Lab, wire: Wire, system: str, ranks: LabRanks, results: Results, rounds: int
) -> None:
    """Cut a NIC half way through a long allreduce; compare its time with the shortest possible."""
    size = SIZES[-1]
    half_ns = round(allreduce_seconds(size.nbytes, HOSTS, wire.rate, wire.nics) * 1e9 / 2)
    ranks.ask("prepare_arbitrary", size.count)
    undisturbed = [_span_seconds(ranks.ask("arbitrary", 0)) for _ in range(rounds)]
    over, seconds, cuts, same_bits = [], [], [], True
    for _ in range(rounds):
        answers, samples = with_cut(lab, ranks, ("arbitrary",), half_ns, None)
        start_ns = min(span.start_ns for span, _ in answers)
        cut = max(0, unplugged_at(samples, CUT_NIC) - start_ns) / 1e9
        took = _span_seconds(answers)
        allowed = seconds_with_cut(size.nbytes, HOSTS, wire.rate, wire.nics, cut)
        over.append(took / allowed)
        seconds.append(took)
        cuts.append(cut)
        same_bits = same_bits and all(same for _, same in answers)
    results.event(
        "one of two NICs cut in the middle",
        {
            "undisturbed_s": percentile(undisturbed, 50),
            "cut_at_s": percentile(cuts, 50),
            "took_s": percentile(seconds, 50),
            "over_allowed": percentile(over, 50),
            "over_allowed_p10": percentile(over, 10),
            "over_allowed_p90": percentile(over, 90),
            "same_bits": str(same_bits),
            "rounds": rounds,
        },
        wire=str(wire),
        system=system,
        bytes=size.nbytes,
    )
    name = f"{wire}, {size.name}, {system}, NIC cut in the middle"
    results.target(
        f"{name}: over the allowed time", CUT_OVER_ALLOWED, percentile(over, 50), most=True
    )
    results.target(f"{name}: bits as without (1 is yes)", 1, float(same_bits))


def cut_and_back(
    lab: Lab, wire: Wire, system: str, ranks: LabRanks, results: Results, rounds: int
) -> None:
    """Measure the throughput over time of a series in which a NIC is away for two seconds."""
    size = SERIES_SIZE
    passes = series_passes(wire)
    ranks.ask("prepare", size.count, size.buffers)
    before, between, after, recovery = [], [], [], []
    for number in range(rounds):
        question = ("series", "slackline", passes, size.outstanding, number % 4)
        answers, samples = with_cut(lab, ranks, question, DOWN_NS, UP_NS)
        # An allreduce has ended when it has ended at all ranks.
        ends_ns = [max(span.end_ns for span in spans) for spans in zip(*answers, strict=True)]
        down_ns = unplugged_at(samples, CUT_NIC)
        up_ns = plugged_again_at(samples, CUT_NIC)
        rates = window_rates(ends_ns, size.nbytes)
        usual = percentile([rate for begin, end, rate in rates if end <= down_ns], 50)
        back = recovered_at(rates, up_ns, RECOVERED_SHARE * usual)
        before.append(usual)
        between.append(
            percentile([r for b, e, r in rates if b >= down_ns + 5e8 and e <= up_ns], 50) / usual
        )
        recovery.append(float("inf") if back is None else (back - up_ns) / 1e9)
        limit_ns = up_ns + RECOVERY_SECONDS * 1e9
        after.append(percentile([r for begin, _, r in rates if begin >= limit_ns], 50) / usual)
    results.event(
        "a NIC is cut and comes back",
        {
            "before_MB_per_s": percentile(before, 50) / 1e6,
            "on_one_NIC_of_before": percentile(between, 50),
            "recovered_after_s": percentile(recovery, 50),
            "recovered_after_p90_s": percentile(recovery, 90),
            "2_s_after_of_before": percentile(after, 50),
            "rounds": rounds,
        },
        wire=str(wire),
        system=system,
        bytes=size.nbytes,
    )
    name = f"{wire}, {size.name}, {system}, NIC back"
    results.target(
        f"{name}: s until {RECOVERED_SHARE:.0%} of before",
        RECOVERY_SECONDS,
        percentile(recovery, 50),
        most=True,
    )
    results.target(f"{name}: of before, 2 s later", RECOVERED_SHARE, percentile(after, 50))


def window_rates(ends_ns: Sequence[int], nbytes: int) -> list[tuple[int, int, float]]:
    """Return (begin, end, bytes per second) of every WINDOW consecutive allreduces."""
    windows = zip(ends_ns, ends_ns[WINDOW:], strict=False)
    return [(begin, end, WINDOW * nbytes * 1e9 / (end - begin)) for begin, end in windows]


def recovered_at(rates: Sequence[tuple[int, int, float]], up_ns: int, wanted: float) -> int | None:
    """Return the end of the first window after `up_ns` with the rate `wanted`; None if none has it.

    The whole window counts, so the result cannot be less than WINDOW allreduces after `up_ns`.
    """
    first = bisect_left(rates, up_ns, key=lambda window: window[0])
    return next((end for _, end, rate in rates[first:] if rate >= wanted), None)


def series_passes(wire: Wire) -> int:
    """Return the number of passes over all buffers that take SERIES_SECONDS on all NICs."""
    each = allreduce_seconds(SERIES_SIZE.nbytes, HOSTS, wire.rate, wire.nics)
    return round(SERIES_SECONDS / each / SERIES_SIZE.buffers)


def with_cut(
    lab: Lab, ranks: LabRanks, question: tuple, down_ns: int, up_ns: int | None
) -> tuple[list, list]:
    """Call a method at all ranks while a NIC is cut.

    `question` is the method and its arguments except the last, which is the start in ns. Returns
    the answers and the samples of the NICs. The NIC goes down `down_ns` after the start. It comes
    back `up_ns` after the start or, if `up_ns` is None, when all ranks have answered.
    """
    start_ns = time.monotonic_ns() + LEAD_NS
    length = "" if up_ns is None else f" for {format_duration_ns(up_ns - down_ns)}"
    begin = format_duration_ns(LEAD_NS + down_ns)
    plan = parse_all([f"nic {CUT_HOST}.{CUT_NIC} down from {begin}{length}"])
    ranks.ask("watch", CUT_HOST, lab.options.nics)
    method, *arguments = question
    with lab.inject(plan, started=False) as injection:
        injection.start()
        answers = ranks.ask(method, *arguments, start_ns)
    samples = ranks.ask("watched")[CUT_HOST]
    _settle(ranks, lab.options.nics)
    return answers, samples


def _settle(ranks: LabRanks, nics: int) -> None:
    """Run allreduces until every host sends over all of its NICs again, for the next round."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        sent = ranks.ask("exercise", nics)
        if all(min(nics_bytes) * 2 > max(nics_bytes) for nics_bytes in sent):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"after {SETTLE_SECONDS:g} s the NICs still carry {sent} bytes")


def _span_seconds(answers: list) -> float:
    """Return the seconds from the first rank's start to the last rank's end."""
    spans = [span for span, _ in answers]
    return (max(s.end_ns for s in spans) - min(s.start_ns for s in spans)) / 1e9
