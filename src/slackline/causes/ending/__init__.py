"""Explanation of the end of a job, from its ranks' reports and telemetry.

    _evidence     the facts that a directory holds about each rank: `gather`
    _places       the line of the script that a thread is in
    _words        the names of ranks, operations and times in sentences
    _findings     facts that several rules need: failures, exceptions, operations by their ranks
    _failures     rules for ranks that failed: crashes, exceptions, disagreements, lost ranks
    _waits        rules for ranks that waited: a late rank, a link that delivers nothing
    _endings      rules for jobs without an error: ended, terminated, unfinished
    _explanation  the three sentences, and the order of the rules: `explain`

All rules are pure functions of the evidence. Nothing here needs torch.
"""

from slackline.causes.ending._evidence import Evidence, RankEvidence, gather
from slackline.causes.ending._explanation import explain
from slackline.causes.ending._words import Explanation

__all__ = ["Evidence", "Explanation", "RankEvidence", "explain", "gather"]
