"""Tests of the calls at the end of the process."""

import subprocess
import sys

import pytest

from slackline._process_end import ProcessEnd

SCRIPT = """
import atexit
import slackline
atexit.register(print, "the program")
from slackline._process_end import process_end
process_end.add(lambda: print("an engine"))
process_end.add(lambda: print("its groups"))
"""


def test_the_calls_come_after_the_handlers_of_the_program_the_latest_first() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=110, check=True
    )
    assert ended.stdout.splitlines() == ["the program", "its groups", "an engine"]


def test_an_error_of_a_call_keeps_no_other_call_from_being_made() -> None:
    made, end = list[str](), ProcessEnd()

    def fail() -> None:
        raise ValueError("no")

    end.add(lambda: made.append("first"))
    end.add(fail)
    end.add(lambda: made.append("last"))
    with pytest.raises(ValueError, match="no"):
        end.run()
    assert made == ["last", "first"]
    end.run()
    assert made == ["last", "first"]


def test_last_calls_come_once_after_all_others_also_after_an_error() -> None:
    made, end = list[str](), ProcessEnd()

    def last() -> None:
        made.append("last")

    def fail() -> None:
        end.add(lambda: made.append("late"))
        raise ValueError("no")

    end.add_last(last)
    end.add_last(last)
    end.add(lambda: made.append("first"))
    end.add(fail)
    with pytest.raises(ValueError, match="no"):
        end.run()
    assert made == ["late", "first", "last"]


def test_a_removed_call_is_not_made() -> None:
    made, end = list[str](), ProcessEnd()
    calls = [lambda: made.append("one"), lambda: made.append("two")]
    for call in calls:
        end.add(call)
    end.remove(calls[0])
    end.remove(calls[0])
    end.run()
    assert made == ["two"]
