"""Tests of the output on a screen without cursor movement."""

import sys
from datetime import timedelta
from pathlib import Path

import pytest
from rich.table import Table

from slackline.views.terminal._screen import PlainScreen, open_screen


def test_each_stream_stays_what_it_is_and_notes_begin_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with PlainScreen() as screen:
        screen.stdout(b"half a")
        screen.stdout(b" line\n")
        screen.stderr(b"no end")
        screen.note("a note")
        screen.table(Table("rank"))
    captured = capsys.readouterr()
    assert captured.out == "half a line\n"
    assert captured.err.startswith("no end\nslackline run: a note\n┏")


def test_bytes_that_are_no_text_do_not_stop_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    with PlainScreen() as screen:
        screen.stdout(b"\xff\n")
    assert capsys.readouterr().out == "\ufffd\n"


def test_a_stream_that_takes_no_more_is_told_once_and_ends_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path("/dev/full").open("w") as full, PlainScreen() as screen:
        monkeypatch.setattr(sys, "stdout", full)
        screen.stdout(b"half")
        screen.stdout(b" a line\n")
        screen.note("a note")
        assert screen.lost == "stdout: No space left on device"
        monkeypatch.undo()
    assert capsys.readouterr().err == (
        "slackline run: nothing more is shown on stdout: No space left on device; the job goes "
        "on\nslackline run: a note\n"
    )


@pytest.mark.parametrize(("interval", "lines"), [(timedelta(0), 2), (timedelta(hours=1), 0)])
def test_progress_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], interval: timedelta, lines: int
) -> None:
    with PlainScreen(interval) as screen:
        screen.progress("step 1")
        screen.progress("step 2")
    assert capsys.readouterr().err.count("slackline run: step") == lines


def test_without_a_terminal_the_screen_is_plain() -> None:
    assert isinstance(open_screen(), PlainScreen)
