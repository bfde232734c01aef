"""The history of a job: the one reader of the files that its ranks write, live and afterwards.

    _files      the files of a directory, line by line
    _lines      one line of a file as a record
    _reports    the reports of failures, one for each rank
    _tail       a rank's file, read while the rank writes it
    _times      the time at which a record was written
    _timed_tail a rank's file as it grows, each record with its time
    _align      the clocks of all hosts, compared once for a finished run
    _clocks     the same comparison while the ranks write
    _recording  all records of a finished run in the order of time, in bounded memory
    _job        the state of a job: all ranks, links, decisions and findings
    _rank       one rank: its process, its steps, its operations
    _promised   a predicted step time, and the steps that it was about
    _state_hashes  the hashes of a training's state, from the parts of all ranks
    _history    the step times of a whole run, in bounded memory
    _link       one rail of a link, as the rank at one end sees it
    _decisions  decisions that several ranks have made in common
    _direction  one direction of a rail, with its rate and its disturbance
    _disturbances  the disturbances of all links, one for each rail and condition

`Job.update` reads the records that ranks have added, so that a job can be watched while it runs and
read afterwards; a `Recording` gives every record once. Nothing here writes or needs torch.
"""

from typing import TYPE_CHECKING

from slackline._lazy import lazily

if TYPE_CHECKING:
    from slackline.history._align import Alignment, align
    from slackline.history._decisions import CommonDecision, common_decisions
    from slackline.history._direction import Direction
    from slackline.history._disturbances import Disturbance, disturbances
    from slackline.history._files import (
        Flaws,
        files_of,
        read_all,
        read_directory,
        read_file,
        telemetry_of,
    )
    from slackline.history._history import StepHistory, Steps
    from slackline.history._job import Finding, Job, verdict_of
    from slackline.history._lines import decode
    from slackline.history._link import Link
    from slackline.history._promised import Promised
    from slackline.history._rank import Call, OperationTotals, Rank, State
    from slackline.history._recording import Found, Recording
    from slackline.history._reports import parse_report, read_dumps, read_reports
    from slackline.history._state_hashes import StateHashes
    from slackline.history._tail import RecordTail
else:
    __getattr__ = lazily(
        __name__,
        {
            "_align": "Alignment align",
            "_decisions": "CommonDecision common_decisions",
            "_direction": "Direction",
            "_disturbances": "Disturbance disturbances",
            "_files": "Flaws files_of read_all read_directory read_file telemetry_of",
            "_history": "StepHistory Steps",
            "_job": "Finding Job verdict_of",
            "_lines": "decode",
            "_link": "Link",
            "_promised": "Promised",
            "_rank": "Call OperationTotals Rank State",
            "_recording": "Found Recording",
            "_reports": "parse_report read_dumps read_reports",
            "_state_hashes": "StateHashes",
            "_tail": "RecordTail",
        },
    )

__all__ = [
    "Alignment",
    "Call",
    "CommonDecision",
    "Direction",
    "Disturbance",
    "Finding",
    "Flaws",
    "Found",
    "Job",
    "Link",
    "OperationTotals",
    "Promised",
    "Rank",
    "RecordTail",
    "Recording",
    "State",
    "StateHashes",
    "StepHistory",
    "Steps",
    "align",
    "common_decisions",
    "decode",
    "disturbances",
    "files_of",
    "parse_report",
    "read_all",
    "read_directory",
    "read_dumps",
    "read_file",
    "read_reports",
    "telemetry_of",
    "verdict_of",
]
