"""Which link is slow, in which direction, since when and why: from what the engines count.

    _samples      the input: a rail at one moment, and its probes
    _options      how much counts as a change
    _usual        what is usual: middle and scatter of calm readings
    _change       the moment of a change, and of its end
    _clocks       two hosts' clocks against each other
    _latency, _throughput, _loss, _queues   one thing each about a rail
    _rail         everything about one rail
    _state        what is known of a direction: the input of verdicts
    _verdict      from a state to a word and a sentence
    _board        all rails of a rank: samples in, news out
    _late         a late rank or a slow link
    _ledger       what all ranks say, put together

Everything here is a function of its arguments: no clock, no thread, no I/O. Times are integer
nanoseconds; whoever samples the engine says when.
"""

from slackline.health._board import Board
from slackline.health._late import LateRank, Side, late_ranks
from slackline.health._ledger import Episode, Ledger
from slackline.health._options import HealthOptions
from slackline.health._samples import Probe, RailSample
from slackline.health._state import Shift, WayState
from slackline.health._verdict import Condition, Judgement, Verdict, judge

__all__ = [
    "Board",
    "Condition",
    "Episode",
    "HealthOptions",
    "Judgement",
    "LateRank",
    "Ledger",
    "Probe",
    "RailSample",
    "Shift",
    "Side",
    "Verdict",
    "WayState",
    "judge",
    "late_ranks",
]
