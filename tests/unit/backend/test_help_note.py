"""Tests of the last line of a traceback that ends a script."""

import sys

import pytest

from slackline import errors
from slackline.backend._context import point_to_help

KINDS = [getattr(errors, name) for name in errors.__all__]


def _ending(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> list[str]:
    """Return the notes with which the former hook gets an uncaught error."""
    shown: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: shown.append(error))
    point_to_help()
    sys.excepthook(type(error), error, None)
    assert shown == [error]
    return list(getattr(error, "__notes__", []))


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_that_ends_a_script_names_the_command_that_explains_it(
    monkeypatch: pytest.MonkeyPatch, kind: type[errors.SlacklineError]
) -> None:
    told = _ending(monkeypatch, kind("rank 1 closed the link"))
    assert told == [f"slackline help {kind.__name__}: what is dead now, and what to do"]


def test_an_error_of_the_script_has_no_note(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _ending(monkeypatch, ValueError("wrong weights")) == []
