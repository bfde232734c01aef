"""Tests of the server that forks ranks, and of the runner of jobs that asks it."""

import os
import select
import signal
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from rank_jobs import ForkServer, Jobs


def failing(rank, size, store):
    """End each rank in another way: by itself, with an exit code, by a signal."""
    if rank == 1:
        os._exit(3)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)


def test_each_rank_that_fails_is_named(job):
    with pytest.raises(pytest.fail.Exception) as caught:
        job(3, failing, bare=True)
    assert str(caught.value).splitlines() == ["rank 1: ended with 3", "rank 2: ended with -9"]


def test_a_rank_that_may_die_is_not_a_failure(job):
    job(3, failing, bare=True, dying=(1, 2))


def pausing(rank, size, store):
    signal.pause()


def test_a_rank_that_does_not_end_is_killed_and_named(job):
    with pytest.raises(pytest.fail.Exception) as caught:
        job(1, pausing, bare=True, seconds=0.1)
    assert str(caught.value) == "rank 0: did not end"


def meeting(rank, size, store):
    """Meet another job: a FIFO opens when one side reads and the other one writes."""
    path, side = os.environ["MEETING"], os.environ["SIDE"]
    if side == "writer":
        Path(path).write_text("met")
        return side
    return Path(path).read_text()


def test_jobs_of_two_workers_run_at_the_same_time(job, tmp_path):
    os.mkfifo(path := tmp_path / "meeting")
    request = {"file": __file__, "function": "meeting", "size": 1, "bare": True, "seconds": 100}
    with closing(Jobs(job.address)) as other:
        other.post(request | {"environment": {"MEETING": str(path), "SIDE": "reader"}})
        meets = {"MEETING": str(path), "SIDE": "writer"}
        assert job(1, meeting, bare=True, environment=meets) == ["writer"]
        assert [answer["result"] for answer in other.answers(__file__)] == ["met"]


def resting(rank, size, store):
    Path(os.environ["STARTED"]).write_text(str(os.getpid()))
    signal.pause()


def test_the_ranks_of_a_worker_that_disconnects_are_ended(job, tmp_path):
    os.mkfifo(path := tmp_path / "started")
    with closing(Jobs(job.address)) as leaving:
        leaving.post(
            {
                "file": __file__,
                "function": "resting",
                "size": 1,
                "bare": True,
                "environment": {"STARTED": str(path)},
                "seconds": 1000,
            }
        )
        process = os.pidfd_open(int(path.read_text()))
    try:
        ended = select.poll()
        ended.register(process, select.POLLIN)
        assert ended.poll(60_000) != []
    finally:
        os.close(process)


def surroundings(rank, size, store):
    os.write(2, b"one of the rank's lines\n")
    return os.environ["SURROUNDINGS"], os.environ.get("OTHERS", "none"), os.read(0, 1) == b""


def test_a_rank_has_the_environment_and_the_output_of_its_test(job, monkeypatch, capfd):
    monkeypatch.setenv("SURROUNDINGS", "of the first test")
    monkeypatch.setenv("OTHERS", "some")
    assert job(1, surroundings, bare=True) == [["of the first test", "some", True]]
    monkeypatch.delenv("OTHERS")
    there = {"SURROUNDINGS": "of the job"}
    assert job(1, surroundings, bare=True, environment=there) == [["of the job", "none", True]]
    assert capfd.readouterr().err == "one of the rank's lines\n" * 2


def test_a_file_that_cannot_be_imported_fails_its_job_alone(job, tmp_path):
    (path := tmp_path / "cases.py").write_text("raise SystemExit('no cases')\n")
    with closing(Jobs(job.address)) as other:
        other.post({"file": str(path), "function": "any"})
        (answer,) = other.answers(str(path))
    assert answer["error"].endswith("SystemExit: no cases\n")
    job(1, failing, bare=True)


@pytest.mark.slow  # a server of its own imports torch
def test_a_server_that_does_not_end_in_time_is_killed_and_its_job_is_named(tmp_path):
    os.mkfifo(started := tmp_path / "started")
    (path := tmp_path / "cases.py").write_text(
        f"import signal\nopen({str(started)!r}, 'w').close()\nwhile True:\n    signal.pause()\n"
    )
    server = ForkServer()
    with closing(Jobs(server.address)) as jobs:
        jobs.post({"file": str(path), "function": "hanging"})
        assert started.read_text() == ""
        with pytest.raises(TimeoutError) as caught:
            server.close(timedelta(milliseconds=100))
    assert str(caught.value) == (
        "the process that forks ranks has not ended within 0:00:00.100000; "
        f"its latest job: hanging of {path}"
    )
