"""Tests of the announcement of running jobs, by which `slackline top` finds them."""

import json
import os
import stat
from pathlib import Path

import pytest
from monitored_files import write_job

from slackline.cli import main
from slackline.cli._job._announced import announced, running_jobs
from slackline.env import runtime_folders


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a user's directory for running programs, and one for temporary files."""
    folder = tmp_path / "runtime"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return folder / "slackline"


def _copy(runtime: Path, name: str, **changed: object) -> None:
    """Write a further announcement, like that of this process with some fields changed."""
    (file,) = (runtime / "jobs").glob(f"{os.getpid()}.json")
    said = {**json.loads(file.read_text()), **changed}
    (runtime / "jobs" / name).write_text(json.dumps(said))


def test_a_job_is_found_while_it_runs(
    runtime: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_job(tmp_path)
    notes: list[str] = []
    with announced(tmp_path, "train.py", 3, notes.append):
        (job,) = running_jobs()
        assert (job.pid, job.directory) == (os.getpid(), str(tmp_path))
        assert (job.program, job.ranks) == ("train.py", 3)
        assert stat.S_IMODE((runtime / "jobs").stat().st_mode) == 0o700
        assert main(["top", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["directory"] == str(tmp_path)
    assert running_jobs() == []
    assert list((runtime / "jobs").iterdir()) == []
    assert notes == []
    assert main(["top", "--json"]) == 2
    assert capsys.readouterr().err == (
        "slackline: this user runs no job of slackline run on this machine: name the directory of "
        "a job's telemetry\n"
    )


def test_several_jobs_are_listed(
    runtime: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with announced(tmp_path, "train.py", 3, print):
        parent = os.getppid()
        start = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19])
        _copy(runtime, f"{parent}.json", pid=parent, started=start, directory="/elsewhere")
        assert main(["top", "--once"]) == 2
    listed = capsys.readouterr().err
    assert listed.startswith("slackline: this user runs 2 jobs, name the directory of one: ")
    assert f"{tmp_path} (train.py, 3 ranks)" in listed
    assert "/elsewhere (train.py, 3 ranks)" in listed


def test_files_of_ended_processes_and_of_other_versions_are_ignored(
    runtime: Path, tmp_path: Path
) -> None:
    with announced(tmp_path, "train.py", 3, print):
        _copy(runtime, "1.json", started=1)
        _copy(runtime, "2.json", pid="two")
        (runtime / "jobs" / "3.json").write_text("{")
        (runtime / "jobs" / "4.json").write_text("[]")
        assert [job.pid for job in running_jobs()] == [os.getpid()]


def test_a_folder_that_others_can_write_is_not_used(runtime: Path, tmp_path: Path) -> None:
    runtime.mkdir(mode=0o700)
    runtime.chmod(0o777)
    notes: list[str] = []
    with announced(tmp_path, "train.py", 3, notes.append):
        assert running_jobs() == []
    assert notes == [
        f"slackline top needs this job's directory, {tmp_path}: another user owns or can write "
        f"{runtime}"
    ]


def test_jobs_without_a_directory_for_running_programs_use_the_one_for_temporary_files(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary" / f"slackline-{os.getuid()}"
    assert runtime_folders() == (runtime, temporary)
    for value in ("", "relative", str(tmp_path / "nowhere")):
        assert runtime_folders({"XDG_RUNTIME_DIR": value}) == (temporary,)
    with monkeypatch.context() as without:
        without.delenv("XDG_RUNTIME_DIR")
        job = announced(tmp_path, "train.py", 3, print)
        job.__enter__()
    (found,) = running_jobs()
    assert found.pid == os.getpid()
    job.__exit__(None, None, None)
    assert running_jobs() == []
