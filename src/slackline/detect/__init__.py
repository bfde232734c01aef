"""Detection of slow links: link, direction, start and cause, from the engines' counters.

A rail is one path between two ranks: a TCP or UDP socket, or a ring in shared memory.

    _samples      the input: counters and probes of one rail at one moment
    _options      thresholds
    _baseline     the baseline: median and noise band of calm readings
    _cusum        a CUSUM change detector
    _runs         the number of late readings that a verdict needs
    _clocks       offset and drift between two hosts' clocks
    _latency, _throughput, _loss, _queues   detectors, each of one measured quantity of a rail
    _rail         all detectors of one rail
    _state        the findings about one direction of a rail, from which verdicts are made
    _verdict      functions that turn a state into a condition and an English sentence
    _tracker      all rails of one rank: samples in, verdicts out
    _stragglers   tells a straggler (a late rank) from a slow link
    _deduplicator merges and deduplicates the verdicts of all ranks

The package reads no clock, starts no thread and does no I/O: the same samples always give the same
verdicts. Times are integer nanoseconds, and the caller passes the time of each sample.
"""

from typing import TYPE_CHECKING

from slackline._lazy import lazily

if TYPE_CHECKING:
    from slackline.detect._baseline import Baseline
    from slackline.detect._cusum import Cusum
    from slackline.detect._deduplicator import Deduplicator, Episode, Report
    from slackline.detect._options import HealthOptions
    from slackline.detect._runs import Runs
    from slackline.detect._samples import Probe, RailSample
    from slackline.detect._state import DirectionState, Shift
    from slackline.detect._stragglers import Side, Straggler, find_stragglers
    from slackline.detect._tracker import Tracker
    from slackline.detect._verdict import Condition, Judgement, Verdict, judge
else:
    __getattr__ = lazily(
        __name__,
        {
            "_baseline": "Baseline",
            "_cusum": "Cusum",
            "_deduplicator": "Deduplicator Episode Report",
            "_options": "HealthOptions",
            "_runs": "Runs",
            "_samples": "Probe RailSample",
            "_state": "DirectionState Shift",
            "_stragglers": "Side Straggler find_stragglers",
            "_tracker": "Tracker",
            "_verdict": "Condition Judgement Verdict judge",
        },
    )

__all__ = [
    "Baseline",
    "Cusum",
    "Tracker",
    "Condition",
    "Episode",
    "HealthOptions",
    "Judgement",
    "Straggler",
    "Deduplicator",
    "Probe",
    "Runs",
    "RailSample",
    "Report",
    "Shift",
    "Side",
    "Verdict",
    "DirectionState",
    "judge",
    "find_stragglers",
]
