"""State of a job, followed through the telemetry that its ranks write into one directory.

    _job        all ranks, links, decisions and findings of a job
    _timed_tail a rank's file as it grows, each record with its time
    _rank       one rank: its process, its steps, its operations
    _promised   a predicted step time, and the steps that it was about
    _history    the step times of a whole run, in bounded memory
    _link       one rail of a link, as the rank at one end sees it
    _direction  one direction of a rail, with its rate and its disturbance
    _disturbances  the disturbances of all links, one for each rail and condition

`Job.update` reads the records that ranks have added, so that a job can be watched while it runs and
read afterwards. Nothing here writes, and nothing here needs torch.
"""

from slackline.monitor._direction import Direction
from slackline.monitor._disturbances import Disturbance, disturbances
from slackline.monitor._history import StepHistory, Steps
from slackline.monitor._job import Finding, Job, verdict_of
from slackline.monitor._link import Link
from slackline.monitor._promised import Promised
from slackline.monitor._rank import Call, OperationTotals, Rank, State

__all__ = [
    "Call",
    "Direction",
    "Disturbance",
    "Finding",
    "Job",
    "Link",
    "OperationTotals",
    "Promised",
    "Rank",
    "State",
    "StepHistory",
    "Steps",
    "disturbances",
    "verdict_of",
]
