"""The flight recorder: a process's latest operations, written in torch's format after a failure.

    _entries        an operation in memory: kind, sizes, place in the order of its group, outcome
    _recorded       the Nic and the Group that record operations before the engine gets them
    _stack          the call stack of an operation
    _torch_format   the dictionary that torch's analyser `torchfrtrace` reads
    _signal         the request of one rank, through the job's store, that all ranks write
    _recorder       the ring of operations, the file, and the thread that looks for failures

Nothing is recorded, and no call costs anything, unless an environment variable asks for it.
"""

from typing import TYPE_CHECKING

from slackline._lazy import lazily

if TYPE_CHECKING:
    from slackline.backend.flight._entries import GroupRecord
    from slackline.backend.flight._recorded import RecordedGroup, RecordedNic, recorded_nic
    from slackline.backend.flight._recorder import FlightRecorder
else:
    __getattr__ = lazily(
        __name__,
        {
            "_entries": "GroupRecord",
            "_recorded": "RecordedGroup RecordedNic recorded_nic",
            "_recorder": "FlightRecorder",
        },
    )

__all__ = ["FlightRecorder", "GroupRecord", "RecordedGroup", "RecordedNic", "recorded_nic"]
