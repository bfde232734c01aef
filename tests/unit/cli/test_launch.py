"""Tests of how the end of a job is interpreted."""

import signal

import pytest

from slackline.cli._job._causes import Failure
from slackline.cli._job._launch import Ending


def _failure(exitcode: int) -> Failure:
    return Failure(rank=2, pid=100, exitcode=exitcode, time_s=1000)


@pytest.mark.parametrize(
    ("exitcode", "reason", "code"),
    [
        (7, "exited with code 7", 7),
        (-signal.SIGKILL, "was killed by SIGKILL", 1),
        (-signal.SIGSEGV, "was killed by SIGSEGV", 1),
        (-99, "was killed by signal 99", 1),
    ],
)
def test_a_failure_says_how_the_rank_ended(exitcode: int, reason: str, code: int) -> None:
    assert _failure(exitcode).reason == reason
    assert Ending(failures=(_failure(exitcode),), torchrun=1).exit_code == code


def test_torchrun_s_own_failure_is_code_1() -> None:
    assert Ending(failures=(), torchrun=3).exit_code == 1
    assert Ending(failures=(), torchrun=0).exit_code == 0
