"""Tests of steps that are found in collectives, and of slow ranks without records of steps."""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
from invented_records import collective, header, opened
from made_records import MS_NS as MS
from made_records import SECOND_NS as S
from made_records import START_NS

from slackline.causes import Cause, Diagnosis, Kind
from slackline.causes._cycles import Cycles
from slackline.history import Call, Job

Own = Callable[[int], int]
"""The own time of a step before its first collective, in nanoseconds, by the step's number."""


def _calls(sizes: Sequence[int], steps: int, own: Own) -> list[Call]:
    """Return the collectives of steps: 2 ms lie between two posts, and each one takes 5 ms."""
    found = []
    now_ns = START_NS
    for step in range(steps):
        now_ns += own(step)
        for number, nbytes in enumerate(sizes):
            now_ns += 2 * MS if number else 0
            found.append(Call(now_ns, now_ns + 5 * MS, (1, 1, nbytes)))
        now_ns += 5 * MS
    return found


@pytest.mark.parametrize("sizes", [(400, 800, 100), (400, 400, 400), (400,)])
def test_the_own_time_of_a_step_has_no_time_in_collectives(sizes: tuple[int, ...]) -> None:
    steps = 100
    found = Cycles().take(_calls(sizes, steps, lambda step: 30 * MS + step * MS // 10))
    late = found[-10:]
    # The time between the posts of one step is the rank's own: it does not wait there.
    between_ns = 2 * MS * (len(sizes) - 1)
    assert [own_ns for _, own_ns in late] == [
        30 * MS + step * MS // 10 + between_ns for step in range(steps - 11, steps - 1)
    ]
    assert len({began_ns for began_ns, _ in found}) == len(found)


def test_a_long_stall_is_one_step_and_hides_no_other(tmp_path: Path) -> None:
    found = Cycles().take(_calls((400, 400), 100, lambda step: 8 * S if step == 50 else 30 * MS))
    own = [own_ns for _, own_ns in found]
    assert own.count(8 * S + 2 * MS) == 1
    assert own[-40:] == [32 * MS] * 40


def test_collectives_of_random_sizes_have_no_steps() -> None:
    random = Random(7)
    calls = [
        Call(n * 10 * MS + 1, n * 10 * MS + 2, (1, 1, random.randrange(9999))) for n in range(600)
    ]
    assert Cycles().take(calls) == []


def _named(tmp_path: Path, own: Callable[[int, int], int], steps: int) -> list[Cause]:
    """Diagnose three ranks that post two collectives a step; a step ends when all have posted."""
    job = Job(tmp_path)
    for rank in range(3):
        job.take(header(rank))
        job.take(opened(rank, 3))
    diagnosis = Diagnosis(job)
    named = []
    now_ns = look_ns = 0
    for step in range(steps):
        posted = [now_ns + own(rank, step) for rank in range(3)]
        ended_ns = max(posted) + 8 * MS
        for rank, posted_ns in enumerate(posted):
            job.take(collective(rank, posted_ns, ended_ns, 400))
            job.take(collective(rank, posted_ns + 4 * MS, ended_ns + 4 * MS, 400))
        now_ns = ended_ns + 4 * MS
        while look_ns < now_ns:
            look_ns += S // 4
            job.settle(START_NS + look_ns)
            named += diagnosis.update(START_NS + look_ns)
    return named


def test_a_rank_without_records_of_steps_is_named_by_its_late_posts(tmp_path: Path) -> None:
    random = Random(8)

    def own(rank: int, step: int) -> int:
        usual_ns = random.randrange(48 * MS, 52 * MS)
        return usual_ns + (70 * MS if rank == 1 and step >= 60 else 0)

    (cause,) = _named(tmp_path, own, 120)
    assert (cause.kind, cause.name, cause.ranks) == (Kind.RANK, "rank 1", (1,))
    assert cause.sentence.startswith("rank 1: it posts its collectives late: it takes ")
    assert cause.sentence.endswith(" ms outside of them")


def test_a_rank_that_has_always_been_slower_is_named_within_twenty_steps(tmp_path: Path) -> None:
    random = Random(8)

    def own(rank: int, step: int) -> int:
        return random.randrange(190 * MS, 210 * MS) * (3 if rank == 1 else 2) // 2

    (cause,) = _named(tmp_path, own, 20)
    assert (cause.kind, cause.name, cause.by_peers) == (Kind.RANK, "rank 1", True)
    assert ": it is slower than the others, since the start; it computes " in cause.sentence


def test_ranks_without_records_of_steps_that_are_as_usual_have_no_cause(tmp_path: Path) -> None:
    random = Random(9)

    def own(rank: int, step: int) -> int:
        stall_ns = 400 * MS if random.random() < 0.01 else 0
        return random.randrange(45 * MS, 55 * MS) + stall_ns

    assert _named(tmp_path, own, 400) == []
