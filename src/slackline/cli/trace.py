"""`slackline trace`: a run's telemetry as a trace for Perfetto, Chrome or OpenTelemetry."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from slackline.errors import UsageError
from slackline.units import count

__all__ = ["trace"]


class _Format(StrEnum):
    """A format of the output."""

    PERFETTO = "perfetto"
    CHROME = "chrome"
    OTLP = "otlp"


def trace(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A directory of telemetry (slackline run --keep, SLACKLINE_TELEMETRY).",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(help="Write this file. Default: standard output, which cannot be a terminal."),
    ] = None,
    form: Annotated[
        _Format,
        typer.Option(
            "--format",
            help="Perfetto's protobuf, Chrome's JSON, or spans of OpenTelemetry as OTLP JSON. "
            "Default: perfetto.",
        ),
    ] = _Format.PERFETTO,
) -> int:
    """Write all ranks of a run as one trace, by one clock."""
    from slackline.history import Flaws, Recording
    from slackline.views.trace import TraceFormat, write_spans, write_trace

    if output is None and sys.stdout.isatty():
        raise UsageError("a trace is not for a terminal: give --output FILE")
    flaws = Flaws()
    recording = Recording(run, flaws)
    with _opened(output) as file:
        if form is _Format.OTLP:
            from io import TextIOWrapper

            text = TextIOWrapper(file, encoding="utf-8", write_through=True)
            spans = write_spans(recording, text)
            text.detach()
            print(
                f"{count(len(recording.headers), 'rank')}, {count(spans, 'span')}", file=sys.stderr
            )
            _warn(str(flaws))
            return 0
        totals = write_trace(recording, file, TraceFormat(form))
    print(
        f"{count(totals.ranks, 'rank')}, {count(totals.operations, 'operation')}, "
        f"{count(totals.arrows, 'arrow')}",
        file=sys.stderr,
    )
    _warn(str(flaws))
    if totals.alone:
        _warn(
            f"no arrows for {count(totals.alone, 'operation')}: records of another rank of their "
            f"group "
            "are missing"
        )
    if totals.contradictions:
        _warn(
            f"no arrows for {count(totals.contradictions, 'collective')}: by the compared clocks "
            f"one rank "
            "ended them before another rank had posted them"
        )
    return 0


@contextmanager
def _opened(output: Path | None) -> Iterator[BinaryIO]:
    """Open the output. A file is complete or keeps its former content: it is replaced at the end.

    Raises UsageError if the file cannot be written.
    """
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    replaced = output.is_file() or not output.exists()  # A pipe is written directly.
    unfinished = output.with_name(f".{output.name}.{os.getpid()}") if replaced else output
    try:
        with unfinished.open("wb") as file:
            yield file
        if replaced:
            unfinished.replace(output)
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}") from error
    finally:
        if replaced:
            unfinished.unlink(missing_ok=True)


def _warn(sentence: str) -> None:
    """Print a sentence, if it is not empty, on stderr."""
    if sentence:
        print(f"slackline: {sentence}", file=sys.stderr)
