"""Tests of the ranks whose output is shown while a job runs."""

from collections import defaultdict

import pytest

from slackline.cli._job._shown import Shown, check_shown
from slackline.errors import UsageError


class Job:
    """The streams of a job's ranks, to which a test adds output."""

    def __init__(self) -> None:
        self._new: dict[tuple[int, str], bytes] = defaultdict(bytes)

    def say(self, rank: int, text: str, stream: str = "stdout") -> None:
        self._new[rank, stream] += text.encode()

    def read(self, rank: int, stream: str) -> bytes:
        return self._new.pop((rank, stream), b"")


class Screen:
    """A display that keeps what it shows."""

    def __init__(self) -> None:
        self.out = self.err = b""

    def stdout(self, output: bytes) -> None:
        self.out += output

    def stderr(self, output: bytes) -> None:
        self.err += output


def test_rank_0_is_shown_if_it_prints_soon() -> None:
    job, screen, now = Job(), Screen(), [0.0]
    shown = Shown("first", range(4), job.read, lambda: now[0])
    job.say(3, "three\n")
    shown.show(screen)
    now[0] = 1.9
    job.say(0, "ze")
    job.say(2, "two\n")
    shown.show(screen)
    job.say(0, "ro\n")
    job.say(3, "more\n")
    shown.show(screen, ended=True)
    assert screen.out == b"zero\n"
    assert shown.ranks == {0}


def test_the_first_rank_that_prints_is_shown_unchanged_if_rank_0_is_silent() -> None:
    job, screen, now = Job(), Screen(), [0.0]
    shown = Shown("first", range(4), job.read, lambda: now[0])
    job.say(0, "a warning\n", "stderr")
    job.say(3, "a warning\n", "stderr")
    job.say(3, "loss 1")
    shown.show(screen)
    assert (screen.out, screen.err) == (b"", b"a warning\n")
    job.say(1, "late\n")
    job.say(3, "\n")
    now[0] = 2.0
    shown.show(screen)
    assert screen.out == b"loss 1\n"
    assert shown.ranks == {0, 3}
    job.say(3, "\rstep 2", "stderr")
    job.say(0, "too late")
    job.say(3, "loss 2\n")
    shown.show(screen, ended=True)
    assert screen.out == b"loss 1\nloss 2\n"
    assert screen.err == b"a warning\na warning\n\rstep 2"


def test_output_of_a_job_that_has_ended_waits_for_nobody() -> None:
    job, screen = Job(), Screen()
    shown = Shown("first", range(2), job.read, lambda: 0.0)
    job.say(1, "last words")
    shown.show(screen, ended=True)
    assert screen.out == b"last words"


def test_a_machine_without_rank_0_shows_nothing_by_default() -> None:
    job, screen = Job(), Screen()
    shown = Shown("first", range(2, 4), job.read)
    job.say(2, "out")
    job.say(2, "err", "stderr")
    shown.show(screen, ended=True)
    assert (screen.out, screen.err, shown.ranks) == (b"", b"", frozenset())


def test_all_ranks_are_shown_line_by_line() -> None:
    job, screen = Job(), Screen()
    shown = Shown("all", range(2, 4), job.read)
    job.say(3, "one\ntw")
    job.say(2, "else\n", "stderr")
    shown.show(screen)
    assert screen.out == b"rank 3 | one\n"
    job.say(3, "o\nrest")
    job.say(2, "\n")
    shown.show(screen)
    shown.show(screen, ended=True)
    assert screen.out == b"rank 3 | one\nrank 2 | \nrank 3 | two\nrank 3 | rest\n"
    assert screen.err == b"rank 2 | else\n"
    assert shown.ranks == {2, 3}


def test_one_rank_is_shown_alone() -> None:
    job, screen = Job(), Screen()
    shown = Shown("1", range(4), job.read)
    job.say(0, "zero")
    job.say(1, "one")
    job.say(0, "bad", "stderr")
    job.say(1, "fine", "stderr")
    shown.show(screen, ended=True)
    assert (screen.out, screen.err) == (b"one", b"fine")
    assert shown.ranks == {1}


@pytest.mark.parametrize("text", ["4", "-1", "some", ""])
def test_another_choice_is_refused(text: str) -> None:
    assert check_shown("3", 4) == "3"
    with pytest.raises(UsageError) as caught:
        check_shown(text, 4)
    assert str(caught.value) == f"--output must be first, all or a rank from 0 to 3, not {text!r}"
