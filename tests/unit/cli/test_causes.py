"""Tests of the choice of the rank that caused a job's failure, and of errors in its output."""

import signal

import pytest

from slackline.cli._job._causes import Failure, cause_first, script_error

PEER = "slackline.errors.PeerError: rank 3: its process has ended"
OWN = "ValueError: wrong weights"

TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 7, in <module>
    main()
{error}
"""

DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


def _failure(exitcode: int, *, rank: int, time_s: int = 1000, error: str = "") -> Failure:
    return Failure(rank=rank, pid=100, exitcode=exitcode, time_s=time_s, error=error)


def _marked(text: str) -> str:
    """Return the text as torch writes an exception that ends a script."""
    return "\n".join(f"[rank3]: {line}" if line else "" for line in text.split("\n"))


@pytest.mark.parametrize(
    ("failures", "cause"),
    [
        ([_failure(1, rank=0), _failure(-signal.SIGKILL, rank=3)], 3),
        ([_failure(-signal.SIGTERM, rank=0), _failure(1, rank=3)], 3),
        ([_failure(1, rank=0), _failure(-signal.SIGKILL, rank=3, time_s=1030)], 0),
        ([_failure(1, rank=0), _failure(1, rank=1)], 1),
        ([_failure(1, rank=1, error=PEER), _failure(1, rank=0, error=OWN)], 0),
        ([_failure(1, rank=1, error=PEER), _failure(2, rank=0)], 0),
        ([_failure(1, rank=0, error=PEER), _failure(-signal.SIGTERM, rank=3, error=OWN)], 3),
        ([_failure(1, rank=0, error=PEER), _failure(-signal.SIGTERM, rank=3, error=PEER)], 0),
        (
            [
                _failure(1, rank=0, error=PEER),
                _failure(-signal.SIGKILL, rank=3, time_s=1030, error=OWN),
            ],
            3,
        ),
        ([_failure(1, rank=0, error=OWN), _failure(-signal.SIGTERM, rank=3, error=OWN)], 3),
    ],
    ids=[
        "a kill",
        "not torchrun's SIGTERM",
        "not torchrun's late SIGKILL",
        "the first to speak",
        "an error of its own, not a peer's",
        "an exit without an exception, not a peer's error",
        "an error of its own before torchrun's SIGTERM",
        "a peer's error before its own end, not before torchrun's SIGTERM",
        "an error of its own before torchrun's late SIGKILL",
        "the first of two errors",
    ],
)
def test_the_cause_comes_first(failures: list[Failure], cause: int) -> None:
    spoken_ns = {0: 500, 1: 400, 3: 0}
    cut_off = {failure.rank for failure in failures if failure.time_s == 1030}
    assert cause_first(failures, spoken_ns, cut_off)[0].rank == cause


def test_a_rank_that_torchrun_ended_after_an_error_is_reported_with_the_error() -> None:
    failure = _failure(-signal.SIGTERM, rank=3, error=OWN)
    assert failure.reason == "was killed by SIGTERM after ValueError: wrong weights"
    assert _failure(1, rank=3, error=OWN).reason == "exited with code 1"


@pytest.mark.parametrize(
    "error",
    [
        PEER,
        "slackline.errors.LinkError: rank 3: no rail was left",
        "slackline.errors.TimeoutError: all_reduce was not done in 2 s",
        "RuntimeError: PeerError: rank 3: its process has ended",
    ],
)
def test_errors_about_other_ranks_are_none_of_the_rank_s_own(error: str) -> None:
    assert not _failure(1, rank=0, error=error).own_error


@pytest.mark.parametrize("error", [OWN, "TimeoutError: timed out", "KeyError: 'PeerError: '"])
def test_other_errors_are_the_rank_s_own(error: str) -> None:
    assert _failure(1, rank=0, error=error).own_error


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", ""),
        ("usage: no such flag\n", ""),
        (TRACEBACK.format(error=OWN), OWN),
        (TRACEBACK.format(error=f"{OWN}\nof layer 3") + "and a warning\n", OWN),
        (TRACEBACK.format(error=PEER) + TRACEBACK.format(error=OWN), OWN),
        (TRACEBACK.format(error=OWN) + DURING + TRACEBACK.format(error=PEER), OWN),
        (
            TRACEBACK.format(error=OWN)
            + "Exception ignored in: <function Cache.__del__ at 0x7f>\n"
            + TRACEBACK.format(error="KeyError: 7"),
            OWN,
        ),
    ],
    ids=[
        "no output",
        "no exception",
        "one exception",
        "a message of two lines",
        "the last exception",
        "the first exception of a chain",
        "not the exception of a destructor",
    ],
)
def test_the_error_of_a_script_is_found_in_its_output(text: str, error: str) -> None:
    assert script_error(text, marked=False) == error
    assert script_error(_marked(text), marked=True) == error


def test_an_exception_that_the_script_has_caught_and_printed_does_not_end_it() -> None:
    caught, ended = TRACEBACK.format(error="OSError: again"), _marked(TRACEBACK.format(error=OWN))
    assert script_error(caught, marked=True) == ""
    assert script_error(ended + caught, marked=False) == OWN
