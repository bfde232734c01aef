"""The dump of the flight recorder that a program asks for."""

from pathlib import Path

from slackline.backend._context import create

__all__ = ["dump_flight_recorder"]


def dump_flight_recorder(path: Path | str) -> Path:
    """Write this rank's latest operations to a file in the directory `path`; return the file.

    The file PATH/slackline_trace_rank_N, where N is the rank in the job, has torch's format:
    torch's analyser `torchfrtrace PATH` reads the files of all ranks. Raises UsageError if no group
    is open or the recorder is off (SLACKLINE_FLIGHT_RECORDER), and OSError if the file cannot be
    written.
    """
    return create.recorder().dump(Path(path))
