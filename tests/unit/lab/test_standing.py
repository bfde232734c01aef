"""Tests of the lab that a command without a name acts on, by records of labs of this process."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from slackline.errors import UsageError
from slackline.lab import find
from slackline.lab._ownership import Record
from slackline.lab._system import started

Write = Callable[..., Record]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Provide a function that writes a record; the records of this machine are out of sight."""
    monkeypatch.setattr("slackline.lab._ownership.RUNTIME", tmp_path)

    def record(name: str, *, standing: bool, alive: bool = True) -> Record:
        pid = os.getpid()
        start = started(pid)
        assert start is not None
        written = Record(
            name=name,
            hosts=2,
            nics=1,
            rate=None,
            switch="kernel",
            standing=standing,
            pid=pid,
            started=start if alive else start - 1,
        )
        (tmp_path / f"{name}.json").write_text(json.dumps(asdict(written)))
        return written

    return record


def test_labs_of_running_programs_do_not_stand_in_the_way_of_a_persistent_lab(write: Write) -> None:
    write("1234-aa", standing=False)
    persistent = write("lab", standing=True)
    write("other", standing=False)
    assert find() == persistent


def test_the_lab_of_a_program_is_found_where_no_lab_is_persistent(write: Write) -> None:
    write("gone", standing=True, alive=False)
    only = write("1234-aa", standing=False)
    assert find() == only


@pytest.mark.parametrize("standing", [True, False])
def test_of_several_labs_of_a_kind_one_is_to_be_named(write: Write, standing: bool) -> None:
    write("a", standing=standing)
    write("b", standing=standing)
    if standing:
        write("c", standing=False)
    message = "there are several labs, say which with --name: a, b"
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        find()


def test_without_a_lab_the_command_that_makes_one_is_named(write: Write) -> None:
    write("gone", standing=True, alive=False)
    message = "there is no lab: `slackline lab up` makes one"
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        find()
