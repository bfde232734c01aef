"""The line of the script that a thread is in."""

import re
from collections.abc import Sequence

from slackline.causes.ending._evidence import RankEvidence
from slackline.records.failures import Frame, Thread

__all__ = ["communicates", "place_of", "position", "script_frame"]

_COMMUNICATION = re.compile(r"/slackline/(backend|nic|overlap|pipeline)/|/torch/distributed/")

_LIBRARY = re.compile(
    r"/(site-packages|dist-packages)/|/lib/python3[^/]*/|^<|"
    r"/slackline/(backend|elastic|lab|nic|overlap|pipeline|report|staging|telemetry|testing)/|"
    r"/slackline/(_\w+|env|errors|units)\.py$"
)
"""The paths of source files that belong to Python, to an installed package or to slackline."""


def script_frame(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the script itself; the outermost frame if none is its own."""
    own = [frame for frame in frames if _LIBRARY.search(frame.file) is None]
    if own:
        return own[0]
    return frames[-1] if frames else None


def place_of(frame: Frame) -> str:
    """Return a frame in words: "train.py:12 in step"."""
    function = "" if frame.function == "<module>" else f" in {frame.function}"
    return f"{frame.file}:{frame.line}{function}"


def position(rank: RankEvidence) -> Frame | None:
    """Return the script's line that the rank's main thread was last seen in, None if unknown.

    The stacks at a signal are later than those of the report.
    """
    return script_frame(_main_stack(rank))


def communicates(rank: RankEvidence) -> bool:
    """Return whether the rank's main thread was last seen in a call of slackline or of torch's
    distributed package.
    """
    frames = _main_stack(rank)
    frame = script_frame(frames)
    inner = frames[: frames.index(frame)] if frame is not None else ()
    return any(_COMMUNICATION.search(each.file) for each in inner)


def _main_stack(rank: RankEvidence) -> tuple[Frame, ...]:
    stacks: list[tuple[Thread, ...]] = []
    if rank.dump is not None:
        stacks.append(rank.dump.threads)
    if rank.events:
        stacks.append(rank.events[-1].threads)
    for threads in stacks:
        for thread in threads:
            if thread.main and thread.frames:
                return thread.frames
    return ()
