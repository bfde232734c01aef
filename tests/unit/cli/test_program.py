"""Tests of scripts and modules that a job's ranks run."""

import os
from pathlib import Path

import pytest

from slackline.cli import main
from slackline.cli._job._program import Program
from slackline.errors import UsageError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a package `job` with a module `train` in the current directory, outside sys.path."""
    files = {
        "job/__init__.py": "",
        "job/train.py": "",
        "job/both/__init__.py": "",
        "job/both/__main__.py": "",
        "job/broken.py": "import nothing_of_this_name",
        "spread/parts/__init__.py": "",
        "spread/hidden/far.py": "",
        "spread/__init__.py": "__path__.append(__path__[0] + '/hidden')\nprint('imported')",
        "plain.py": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "job.train",
        "job.both",
        "job.broken",  # The ranks themselves show the error of the module.
        "plain",
        "json.tool",
        "slackline.wire",
        "spread.far",  # The package finds it by a path that it makes when it is imported.
    ],
)
def test_a_module_that_python_would_run_is_taken(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    program = Program(name, ("--lr", "3"), module=True)
    program.check(os.environ)
    assert str(program) == f"-m {name}"
    assert program.words == ["-m", name, "--lr", "3"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "jop.train",
            "there is no module 'jop.train' in {folder!r} or among the installed packages",
        ),
        (
            "job.trains",
            "there is no module 'job.trains' in {folder!r} or among the installed packages",
        ),
        ("job", "'job' is a package without a module __main__: name one of its modules"),
        ("job.train.py", "there is no module 'job.train.py': job.train is not a package"),
        (
            "plain.py",
            "there is no module 'plain.py': plain is not a package; to run the file, leave out "
            "-m: plain.py",
        ),
        ("job/train.py", "'job/train.py' is not the name of a module, such as job.train"),
        ("job..train", "'job..train' is not the name of a module, such as job.train"),
        (".train", "'.train' is not the name of a module, such as job.train"),
    ],
)
@pytest.mark.parametrize("command", ["run", "tune"])
def test_a_module_that_python_could_not_run_is_refused_before_a_rank_starts(
    command: str, name: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "-m", name, "other.py"]) == 2
    assert capsys.readouterr() == ("", f"slackline: {message.format(folder=str(folder))}\n")


def test_a_module_without_its_option_is_told_the_option() -> None:
    with pytest.raises(UsageError) as caught:
        Program("job.train").check(os.environ)
    assert str(caught.value) == (
        "there is no script 'job.train'; to run the module of this name, add -m: -m job.train"
    )


def test_words_behind_the_module_belong_to_it() -> None:
    assert Program("plain.py", ("-m", "job.train")).words == ["plain.py", "-m", "job.train"]
    Program("plain.py", ("-m", "job.nothing")).check(os.environ)
