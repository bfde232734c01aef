"""Tests of explanations of waits: a late rank, different calls, data that do not arrive."""

from collections.abc import Callable

import pytest
from ended_ranks import a_dump, an_event, an_operation, of_rank, told

from slackline.causes.ending import RankEvidence
from slackline.records.failures import Event, RailState


def _timed_out(*missing: int, state: str = "silent", after_s: float = 25) -> Event:
    operation = an_operation(*missing, state=state, error="TimeoutError", error_peer=missing[0])
    return an_event("failure", after_s=after_s, failed=(operation,))


_LATE = "Rank 1 never called all_reduce number 7 (3.91 KiB, plan ring)"
_WAITED = "Ranks 0 and 2 waited for rank 1 since 11:59:55 UTC, for 30 s."


@pytest.mark.parametrize(
    ("late", "line"),
    [
        (lambda: of_rank(1, an_event("asked", after_s=26, line=22)), "train.py:22 in step"),
        (lambda: of_rank(1, dump=a_dump(1)), "train.py:30 in load"),
    ],
)
def test_a_rank_that_never_called_is_shown_at_its_line(
    late: Callable[[], RankEvidence], line: str
) -> None:
    place = line.split()[0]
    assert told(of_rank(0, _timed_out(1)), late(), of_rank(2, _timed_out(1))) == (
        "late",
        (
            f"{_LATE}; its main thread is at {line}.",
            _WAITED,
            f"Look at {place} on rank 1: slow data, a breakpoint, a lock or another branch holds "
            "the rank there.",
        ),
    )


def test_a_rank_in_the_middle_of_a_chain_is_not_blamed() -> None:
    # Rank 0 waits for rank 2, which waits for rank 1.
    kind, sentences = told(of_rank(0, _timed_out(2)), of_rank(1), of_rank(2, _timed_out(1)))
    assert (kind, sentences[0]) == ("late", f"{_LATE}, and no report has the position of rank 1.")
    assert sentences[1] == _WAITED
    assert sentences[2] == (
        "Look at the process of rank 1, whose last record is of 12:00:00 UTC, on host a: "
        "the process "
        "is stopped, or code that holds the interpreter's lock keeps its other threads from "
        "running."
    )


def test_a_rank_that_gets_the_failure_at_its_own_late_call_is_late() -> None:
    refused = an_operation(error="TimeoutError", error_peer=0, refused=True)
    late = of_rank(1, an_event("failure", after_s=40, failed=(refused,), line=22))
    kind, sentences = told(of_rank(0, _timed_out(1)), late, of_rank(2, _timed_out(1)))
    assert (kind, sentences[1]) == ("late", _WAITED)


def test_ranks_in_different_operations_are_named() -> None:
    other = an_operation(0, sequence=0, tag=6, error="TimeoutError", error_peer=0)
    ranks = (
        of_rank(0, _timed_out(1, after_s=25)),
        of_rank(1, an_event("failure", after_s=26, failed=(other,), line=22)),
    )
    kind, sentences = told(*ranks)
    assert kind == "disagreement"
    assert sentences[0] == (
        "The ranks wait in different operations: rank 0 in all_reduce number 7 (3.91 KiB, plan "
        "ring), and rank 1 in all_reduce tag 6 number 0 (3.91 KiB, plan ring); its main "
        "thread is at train.py:22 in step."
    )


def test_a_hang_without_an_error_is_explained_though_all_ranks_ended() -> None:
    hang = an_event("hang", after_s=25, waiting=(an_operation(1),))
    ranks = of_rank(0, hang, ended=True), of_rank(1, an_event("asked", line=22), ended=False)
    assert told(*ranks)[1][0] == f"{_LATE}; its main thread is at train.py:22 in step."
    ended = of_rank(0, hang, ended=True), of_rank(1, an_event("asked", line=22), ended=True)
    assert told(*ended)[1][0] == (
        "All ranks ended in good order, but rank 1 came late to all_reduce number 7 (3.91 KiB, "
        "plan ring), while its main thread was at train.py:22 in step."
    )


def test_a_rank_that_ended_before_an_operation_of_the_others_has_too_few_steps() -> None:
    kind, sentences = told(of_rank(0, _timed_out(1)), of_rank(1, ended=True))
    assert (kind, sentences[0]) == ("late", f"{_LATE}: rank 1 has ended in good order before.")
    assert sentences[2] == (
        "Make all ranks call the same number of operations: compare their numbers of steps."
    )


def test_data_that_do_not_arrive_are_told_with_the_health_of_the_link() -> None:
    rail = RailState(
        peer=1,
        rail=0,
        kind="tcp",
        name="tcp",
        state="up",
        sent_bytes=0,
        received_bytes=0,
        unconfirmed_bytes=0,
        sent_ns=0,
        received_ns=0,
        outward="",
        inward="link 1>0 is silent since 3.0 s",
    )
    waiting = an_event("hang", after_s=25, waiting=(an_operation(1, state="begun"),), rails=(rail,))
    other = an_event("hang", after_s=25, waiting=(an_operation(0, state="taking"),))
    assert told(of_rank(0, waiting), of_rank(1, other)) == (
        "stuck",
        (
            "All ranks that the reports name have called all_reduce number 7 (3.91 KiB, plan "
            "ring), and the data of rank 1 did not reach rank 0.",
            "Ranks 0 and 1 waited since 11:59:55 UTC, for 30 s.",
            "Look at the network between rank 1 and rank 0. The link's health: link 1>0 is silent "
            "since 3.0 s.",
        ),
    )


def test_a_message_without_its_other_end_names_the_sender() -> None:
    receive = an_operation(1, sequence=2, kind="recv", peer=1, plan="", tag=3)
    kind, sentences = told(
        of_rank(0, an_event("hang", after_s=25, waiting=(receive,))), of_rank(1, an_event("asked"))
    )
    assert kind == "late"
    assert sentences[0] == (
        "Rank 1 never called the other end of recv tag 3 number 2 (3.91 KiB); its main thread "
        "is at train.py:12 in step."
    )


def test_a_rank_that_was_ended_in_its_own_call_is_not_called_late() -> None:
    ended = of_rank(1, dump=a_dump(1, calls=True))
    assert told(of_rank(0, _timed_out(1)), ended) == (
        "stuck",
        (
            "The data of rank 1 for all_reduce number 7 (3.91 KiB, plan ring) did "
            "not reach rank "
            "0, and the main thread of rank 1 waited in a call of its own at train.py:30 in load.",
            "Rank 0 waited since 11:59:55 UTC, for 30 s.",
            "Look at the network between rank 1 and rank 0.",
        ),
    )
