"""Tests of explanations of failures and ends: the exact sentences for each."""

import pytest
from ended_ranks import (
    CLOSED,
    CONSEQUENCE,
    ORDERLY,
    a_dump,
    an_event,
    an_operation,
    losing,
    of_rank,
    raising,
    stack,
    told,
)

from slackline.causes.ending import RankEvidence
from slackline.records.failures import Error


def test_a_job_without_failures() -> None:
    assert told(of_rank(0, ended=True), of_rank(1, ended=True)) == (
        "clean",
        (
            "Nothing failed: all 2 ranks ended in good order.",
            "No rank has reported an operation that waited too long.",
            "No finding about a link is in the telemetry.",
        ),
    )


def test_an_exception_in_one_script_comes_before_its_consequences() -> None:
    consequence = raising("slackline.errors.PeerError", ORDERLY, after_s=-3)
    failure = losing(1, ORDERLY, departure="closed", after_s=-4)
    others = [of_rank(rank, failure, consequence) for rank in (0, 2)]
    # By its clock rank 1 fails later than the ranks that fail because of it.
    kind, sentences = told(*others, of_rank(1, raising("ValueError", "wrong weights", after_s=5)))
    assert kind == "exception"
    assert sentences == (
        "Rank 1 failed first at 12:00:05 UTC, at train.py:12 in step: ValueError: wrong weights",
        CONSEQUENCE,
        "Look at rank 1: its output and at train.py:12.",
    )


def test_the_same_exception_on_all_ranks_is_told_once() -> None:
    ranks = [of_rank(rank, raising("ValueError", "no data")) for rank in range(3)]
    assert told(*ranks)[1][0] == (
        "Ranks 0, 1 and 2 failed first at 12:00:00 UTC, at train.py:12 in step: ValueError: no data"
    )


@pytest.mark.parametrize(
    ("type_", "message"),
    [
        ("MemoryError", ""),
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 20 GiB"),
        (
            "RuntimeError",
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes",
        ),
    ],
)
def test_a_lack_of_memory_is_named(type_: str, message: str) -> None:
    kind, sentences = told(of_rank(0), of_rank(1, raising(type_, message)))
    assert kind == "memory"
    assert sentences == (
        f"Rank 1 ran out of memory at 12:00:00 UTC, at train.py:12 in step: {type_}: "
        f"{message}".rstrip(": "),
        "No report of another rank has an operation that waited for rank 1.",
        "Reduce the memory that the script needs, or give the host more, and look at rank 1: its "
        "output and at train.py:12.",
    )


def test_an_error_of_torch_that_wraps_slackline_s_is_a_consequence() -> None:
    wrapped = "PeerError: the link to rank 1 (shm) closed unexpectedly"
    ranks = of_rank(0, raising("RuntimeError", wrapped)), of_rank(1, seen_ns=0, host="")
    assert told(*ranks) == (
        "consequence",
        (
            "Rank 0 failed first at 12:00:00 UTC, by an error that another rank or the network has "
            f"caused: RuntimeError: {wrapped}",
            "No report is here of rank 1.",
            "Look at the output of rank 1.",
        ),
    )


def test_operations_that_began_after_the_loss_did_not_wait() -> None:
    ranks = of_rank(0, losing(1, CLOSED, refused=True)), of_rank(1, exit_code=-9)
    assert told(*ranks)[1][1] == (
        "Rank 0 could not begin all_reduce number 7 (3.91 KiB, plan ring) and failed as a "
        "consequence."
    )


@pytest.mark.parametrize(
    ("exit_code", "cause"),
    [
        (-9, "Rank 1 is gone: its process was killed by SIGKILL."),
        (
            None,
            "Rank 1 is gone: it left no report, and its telemetry ends at 12:00:00 UTC without the "
            "final counters, so its process was killed or its host has failed.",
        ),
    ],
)
def test_a_killed_rank_is_named_by_the_others(exit_code: int | None, cause: str) -> None:
    ranks = (
        of_rank(0, losing(1, CLOSED)),
        of_rank(1, exit_code=exit_code),
        of_rank(2, losing(1, CLOSED)),
    )
    assert told(*ranks) == (
        "killed",
        (
            cause,
            CONSEQUENCE,
            "Look at the kernel's log of host a (dmesg), which names processes killed for lack of "
            "memory, and at the output of rank 1.",
        ),
    )


def test_processes_killed_for_lack_of_memory_are_counted() -> None:
    event = losing(1, CLOSED)
    survivor = an_event("failure", after_s=1, failed=event.failed, killed_for_memory=1)
    _, (cause, _, advice) = told(of_rank(0, survivor), of_rank(1))
    assert cause.endswith(
        "or its host has failed; the kernel of host a has killed 1 process for lack of memory "
        "meanwhile."
    )
    assert advice == "Give host a more memory or reduce the memory of its ranks; dmesg names them."
    other_host = of_rank(0, survivor, host="b")
    assert "memory meanwhile" not in told(other_host, of_rank(1))[1][0]


def test_a_rank_that_left_early_is_not_gone() -> None:
    kind, sentences = told(
        of_rank(0, losing(1, ORDERLY, departure="closed")), of_rank(1, ended=True)
    )
    assert (kind, sentences[0]) == (
        "left",
        "Rank 1 left the group in good order while other ranks still needed it.",
    )
    assert sentences[2] == (
        "Make all ranks call the same number of operations: compare their numbers of steps."
    )


def test_a_rank_that_aborted_the_group_gives_its_reason() -> None:
    message = "rank 1 aborted the group: no data left (during all_reduce(sum) tag 0 sequence 7)"
    kind, sentences = told(
        of_rank(0, losing(1, message, departure="aborted")), of_rank(1, ended=True)
    )
    assert (kind, sentences[0]) == ("aborted", "Rank 1 aborted the group: no data left.")


def test_a_rank_is_not_taken_for_one_that_left_because_of_the_words_of_a_message() -> None:
    for words in (ORDERLY, "rank 1 aborted the group: no data left"):
        ranks = of_rank(0, losing(1, words)), of_rank(1, exit_code=-9)
        assert told(*ranks)[0] == "killed"


def test_an_exit_code_without_an_exception_is_told() -> None:
    ranks = (
        of_rank(0, losing(1, ORDERLY, departure="closed")),
        of_rank(1, exit_code=3),
        of_rank(2, losing(1, ORDERLY, departure="closed")),
    )
    assert told(*ranks) == (
        "exit",
        (
            "Rank 1 exited with code 3, without an exception that a report has.",
            CONSEQUENCE,
            "Look at the output of rank 1.",
        ),
    )
    before = of_rank(1, exit_code=3, seen_ns=0)
    assert told(of_rank(0), before)[1][0].startswith("Rank 1 exited with code 3 before the group")


def test_ranks_that_disagree_are_shown_with_their_lines() -> None:
    message = "the ranks disagree: rank 0 posted all_reduce(sum) where rank 1 posted barrier()"

    def one(rank: int, line: int) -> RankEvidence:
        operation = an_operation(error="MismatchError", error_peer=1 - rank, message=message)
        failure = an_event("failure", failed=(operation,))
        error = raising("slackline.errors.MismatchError", message, after_s=1, line=line)
        return of_rank(rank, failure, error)

    assert told(one(0, 5), one(1, 9)) == (
        "disagreement",
        (
            "The ranks disagree: rank 0 posted all_reduce(sum) where rank 1 posted barrier().",
            "The calls: rank 0 at train.py:5 in step and rank 1 at train.py:9 in step.",
            "Compare these calls: all ranks of a group must call the same operations, with "
            "the same "
            "sizes and types, in the same order.",
        ),
    )


def test_a_link_without_a_rail_between_living_processes() -> None:
    def one(rank: int) -> RankEvidence:
        message = "no rail to it is left"
        return of_rank(rank, losing(1 - rank, message, error="LinkError"), host=f"h{rank}")

    assert told(one(0), one(1)) == (
        "link",
        (
            "The network between rank 0 and rank 1 failed: no rail of their link was left, "
            "and both "
            "processes were alive.",
            "No report of another rank has an operation that waited for ranks 0 and 1.",
            "Look at the NICs, the cables and the switch between hosts h0 and h1; slackline doctor "
            "tests their connections.",
        ),
    )


def test_a_rank_that_lives_on_after_its_link_was_lost_is_not_gone() -> None:
    asked = of_rank(1, an_event("asked", after_s=2))
    assert told(of_rank(0, losing(1, CLOSED)), asked)[0] == "link"
    assert told(of_rank(0, losing(1, CLOSED)), of_rank(1, dump=a_dump(1)))[0] == "link"


def test_a_crash_is_told_with_its_line() -> None:
    ranks = of_rank(0, losing(1, CLOSED)), of_rank(1, dump=a_dump(1, fatal="Segmentation fault"))
    kind, sentences = told(*ranks)
    assert (kind, sentences[0]) == (
        "crash",
        "Rank 1 crashed at train.py:30 in load: Segmentation fault.",
    )


def test_an_exception_in_another_thread_explains_a_job_without_other_errors() -> None:
    error = Error(type="OSError", message="no space left", frames=stack(3, "save"))
    kind, sentences = told(of_rank(0, an_event("thread", errors=(error,)), ended=True))
    assert (kind, sentences[0]) == (
        "thread",
        "A thread of rank 0 failed at 12:00:00 UTC, at train.py:3 in save: OSError: no space left",
    )


def test_an_interrupted_job() -> None:
    kind, sentences = told(of_rank(0, raising("KeyboardInterrupt", "")))
    assert (kind, sentences[0]) == (
        "interrupted",
        "Rank 0 ended by Ctrl-C (SIGINT) at 12:00:00 UTC.",
    )
    assert sentences[1] == "Rank 0 was at train.py:12 in step."


def test_a_job_that_a_signal_ends_without_a_failure() -> None:
    ranks = [of_rank(rank, dump=a_dump(rank)) for rank in range(2)]
    assert told(*ranks) == (
        "terminated",
        (
            "Ranks 0 and 1 ended by SIGTERM, and no rank has reported a failure before.",
            "Rank 0 was at train.py:30 in load.",
            "Look for the sender of the signal: a scheduler, torchrun, or a time limit.",
        ),
    )


def test_ranks_without_an_end_run_or_were_killed_all_at_once() -> None:
    kind, sentences = told(of_rank(0, ended=True), of_rank(1))
    assert kind == "unfinished"
    assert sentences[:2] == (
        "No rank has reported a failure, and the telemetry of rank 1 has no final counters.",
        "The latest record of these ranks is of 12:00:00 UTC.",
    )
