"""The stacks of all Python threads, and an exception with its causes, within limits of size."""

import sys
import threading
from collections.abc import Iterable
from types import FrameType, TracebackType

from slackline.records.failures._schema import Error, Frame, Thread

__all__ = ["MOST_TEXT", "cut", "errors_of", "threads"]

MOST_TEXT = 2000
"""The most characters of a message."""

_MOST_PATH = 300
_MOST_FRAMES = 24
_MOST_THREADS = 32
_MOST_ERRORS = 8


def cut(text: str, most: int = MOST_TEXT) -> str:
    """Return at most `most` characters of a text; the last one of a longer text is an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"


def threads() -> tuple[Thread, ...]:
    """Return the stacks of the process's threads, the main thread's first, at most 32 of them."""
    names = {each.ident: each.name for each in threading.enumerate()}
    main = threading.main_thread().ident
    stacks = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)
    return tuple(
        Thread(name=cut(names.get(ident, ""), 100), main=ident == main, frames=_walk(frame))
        for ident, frame in stacks[:_MOST_THREADS]
    )


def errors_of(error: BaseException) -> tuple[Error, ...]:
    """Return an exception and its causes, the exception itself first, at most 8 of them."""
    found: list[Error] = []
    seen = set[int]()
    each: BaseException | None = error
    while each is not None and id(each) not in seen and len(found) < _MOST_ERRORS:
        seen.add(id(each))
        found.append(_error(each))
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return tuple(found)


def _error(error: BaseException) -> Error:
    kind = type(error)
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    steps = [(step.tb_frame, step.tb_lineno) for step in _trace(error)]
    return Error(
        type=module + kind.__qualname__,
        message=cut(_text(error)),
        frames=_frames(reversed(steps)),
    )


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:
        # The script's own __str__ may raise any type; the report states that type as the text.
        return f"(its text raised {type(failure).__name__})"


def _trace(error: BaseException) -> list[TracebackType]:
    steps = []
    step = error.__traceback__
    while step is not None:
        steps.append(step)
        step = step.tb_next
    return steps


def _walk(frame: FrameType | None) -> tuple[Frame, ...]:
    steps = []
    while frame is not None:
        steps.append((frame, frame.f_lineno))
        frame = frame.f_back
    return _frames(steps)


def _frames(steps: Iterable[tuple[FrameType, int | None]]) -> tuple[Frame, ...]:
    """Return frames, the innermost first; of a deep stack both ends and not the middle."""
    found = [
        Frame(
            file=cut(frame.f_code.co_filename, _MOST_PATH),
            line=line or 0,
            function=cut(frame.f_code.co_name, 100),
        )
        for frame, line in steps
    ]
    half = _MOST_FRAMES // 2
    return tuple(found if len(found) <= _MOST_FRAMES else found[:half] + found[-half:])
