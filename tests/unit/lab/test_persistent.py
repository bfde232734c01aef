"""Tests of the lab that a command without a name acts on, by records of labs of this process."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from slackline._process_start import started
from slackline.errors import UsageError
from slackline.lab import find
from slackline.lab._ownership import Record

Write = Callable[..., Record]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Provide a function that writes a record of a lab to a directory without other records."""
    monkeypatch.setattr("slackline.lab._ownership.RUNTIME", tmp_path)

    def record(name: str, *, persistent: bool, alive: bool = True) -> Record:
        pid = os.getpid()
        start = started(pid)
        assert start is not None
        written = Record(
            name=name,
            hosts=2,
            nics=1,
            rate=None,
            switch="kernel",
            persistent=persistent,
            pid=pid,
            started=start if alive else start - 1,
        )
        (tmp_path / f"{name}.json").write_text(json.dumps(asdict(written)))
        return written

    return record


def test_labs_of_running_programs_do_not_stand_in_the_way_of_a_persistent_lab(write: Write) -> None:
    write("1234-aa", persistent=False)
    persistent = write("lab", persistent=True)
    write("other", persistent=False)
    assert find() == persistent


def test_the_lab_of_a_program_is_found_where_no_lab_is_persistent(write: Write) -> None:
    write("gone", persistent=True, alive=False)
    only = write("1234-aa", persistent=False)
    assert find() == only


@pytest.mark.parametrize("persistent", [True, False])
def test_of_several_labs_of_a_kind_one_is_to_be_named(write: Write, persistent: bool) -> None:
    write("a", persistent=persistent)
    write("b", persistent=persistent)
    if persistent:
        write("c", persistent=False)
    message = "there are several labs, choose one with --name: a, b"
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        find()


def test_without_a_lab_the_command_that_makes_one_is_named(write: Write) -> None:
    write("gone", persistent=True, alive=False)
    message = "there is no lab: `slackline lab up` makes one"
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        find()
