"""Tests in which a rank is killed: the other ranks learn of it at once, and none of its resources
remain."""

import contextlib
import os
import re
from pathlib import Path
from typing import Any

import pytest
from fault_job import Job

QUICKLY = 12.0
"""The seconds within which ranks must learn of a death: half of the operations' timeout of 25 s. A
busy machine may be late by seconds."""


def survivors(job: Job, victim: int, size: int) -> dict[int, Any]:
    """Return the error of each surviving rank's operation."""
    told = {rank: job.told(rank, "error") for rank in range(size) if rank != victim}
    job.tell("leave")
    return told


def check(
    error: dict[str, Any], rank: int, victim: int, nbytes: int, *, posted: bool = True
) -> None:
    assert error["type"] == "PeerError", error
    during = rf" \(during all_reduce\(sum, float32, {nbytes} bytes\) tag 7 sequence 0\)"
    found = re.fullmatch(
        rf"the link to rank {victim} \(engine [0-9a-f]{{8}}\) closed unexpectedly: .+?({during})?",
        error["text"],
    )
    assert found is not None, error["text"]
    assert found[1] or not posted, "what was under way is named"
    assert (error["rank"], error["peer"]) == (rank, victim)
    assert (error["tag"], error["sequence"]) == (7, 0)
    assert error["seconds"] < QUICKLY


WAYS = [
    (False, "shm"),
    (True, "tcp"),
    pytest.param(False, "tcp", marks=pytest.mark.slow),
    pytest.param(True, "shm", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("blocking", "rail"), WAYS)
def test_a_rank_that_dies_in_the_middle_of_an_operation_fails_it_everywhere(
    job: Job, rail: str, blocking: bool
) -> None:
    job.start("lose_a_rank", 3, victim=1, when="middle", blocking=blocking, rails=[rail])
    for rank, error in survivors(job, 1, 3).items():
        check(error, rank, 1, 64 << 20, posted=False)  # a rank may post after the death
    assert job.ends((0, 1, 2)) == [0, -9, 0]


@pytest.mark.parametrize(("blocking", "rail"), WAYS)
def test_a_rank_that_dies_while_others_wait_for_it_is_named(
    job: Job, rail: str, blocking: bool
) -> None:
    job.start("lose_a_rank", 3, victim=2, when="late", blocking=blocking, rails=[rail])
    job.told(2, "ready")
    for rank in (0, 1):
        job.told(rank, "waiting")
    job.kill(2)
    for rank, error in survivors(job, 2, 3).items():
        # A blocking rank reports that it will wait before it has posted, so it may post after the
        # death.
        check(error, rank, 2, 4000, posted=not blocking)
    assert job.ends((0, 1)) == [0, 0]


@pytest.mark.parametrize("rail", ["shm", pytest.param("tcp", marks=pytest.mark.slow)])
def test_ranks_without_a_link_to_a_dead_one_learn_of_its_death(job: Job, rail: str) -> None:
    """Check a group of 6 ranks, whose ranks 0 and 3 exchange no message in a barrier."""
    job.start("lose_one_of_many", 6, victim=3, rails=[rail])
    job.told(3, "ready")
    others = [rank for rank in range(6) if rank != 3]
    for rank in others:
        job.told(rank, "waiting")
    job.kill(3)
    for rank in others:
        error = job.told(rank, "error")
        assert (error["type"], error["peer"]) == ("PeerError", 3), error
        assert "the link to rank 3 (engine " in error["text"]
        assert error["lost"] == [3]
    job.tell("leave")
    assert job.ends(tuple(others)) == [0] * 5


@pytest.mark.parametrize("rail", ["shm", "tcp"])
def test_a_rank_that_died_before_an_operation_fails_it(job: Job, rail: str) -> None:
    job.start("lose_a_rank", 2, victim=0, when="late", blocking=True, rails=[rail])
    job.told(0, "ready")
    job.kill(0)
    for rank, error in survivors(job, 0, 2).items():
        check(error, rank, 0, 4000, posted=False)
    assert job.ends((1,)) == [0]


def arenas(pid: int) -> set[str]:
    """Return the inodes of the engines' registered memory that a process has mapped."""
    rows = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return {row[4] for row in rows if len(row) > 5 and row[5].startswith("/memfd:slackline")}


def mapped_by_anybody() -> set[str]:
    """Return the inodes of engines' registered memory that any process of this user has mapped."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        # A process may end in the meantime, or belong to another user.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            found |= arenas(int(folder.name))
    return found


def socket_names(pid: int) -> set[str]:
    """Return the names of the Unix sockets at which a process can be reached."""
    links = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
    own = {link[8:-1] for link in links if link.startswith("socket:[")}
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {row[7] for row in rows if len(row) > 7 and row[6] in own}


def shared_kilobytes(pid: int) -> int:
    """Return the shared memory in kB that a process has touched."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^RssShmem:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_killed_ranks_leave_nothing_behind(job: Job) -> None:
    job.start("hold_memory", 2)
    for rank in (0, 1):
        job.told(rank, "ready")
    pids = [process.pid for process in job.processes]
    files, names = (set().union(*map(of, pids)) for of in (arenas, socket_names))
    assert min(map(shared_kilobytes, pids)) >= 64 << 10, "each rank touched 64 MiB"
    assert len(files) == 2
    assert files <= mapped_by_anybody()
    assert len([name for name in names if name.startswith("@slackline-")]) >= 2
    assert not any("/dev/shm" in Path(f"/proc/{pid}/maps").read_text() for pid in pids)
    for rank in (0, 1):
        job.kill(rank)
    assert files & mapped_by_anybody() == set()
    left = Path("/proc/net/unix").read_text().split()
    assert names & set(left) == set()


def test_an_idle_group_uses_no_processor_time(job: Job) -> None:
    job.start("idle", 2, seconds=1.0)
    busy = [job.told(rank, "busy") for rank in (0, 1)]
    job.tell("leave")
    assert job.ends((0, 1)) == [0, 0]
    assert max(busy) < 0.05, "5 % of a core; an engine that polls would take all of it"
