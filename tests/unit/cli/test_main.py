"""Tests of the command line: help, version, and errors in one line."""

import subprocess
import sys

import pytest

import slackline
from slackline.cli import main


def test_no_arguments_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "run" in capsys.readouterr().out


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"slackline {slackline.__version__}\n"


def test_plans_are_mounted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "collective", "--ranks", "4"]) == 0
    assert "ring" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--ranks", "0", __file__], "ranks must be between 1 and 1024, not 0"),
        (["run", "--ranks", "-3", __file__], "ranks must be between 1 and 1024, not -3"),
        (["run", "no/such/script.py"], "there is no script 'no/such/script.py'"),
        (["run", "."], "'.' is not a script"),
        (
            ["run", "--timeout", "3", __file__],
            "--timeout 3: a duration must be a number and one of ns, us, ms, s, min, h, not '3'",
        ),
        (["run", "--keep", "/", __file__], "'/' is not an empty directory"),
        (
            ["run", "--ranks", "four", __file__],
            "Invalid value for '--ranks' / '-n': Input should be a valid integer, unable to parse "
            "string as an integer: 'four'",
        ),
    ],
)
def test_a_mistake_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err == f"slackline: {message}\n"
    assert captured.out == ""


@pytest.mark.parametrize("arguments", [["run"], ["run", "--rank", "4", __file__], ["rum"]])
def test_what_cannot_be_parsed_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_unknown_variable_is_refused_before_any_rank_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKLINE_RIALS", "tcp")
    assert main(["run", __file__]) == 2
    assert "SLACKLINE_RIALS is not a variable of slackline" in capsys.readouterr().err


def test_help_loads_neither_torch_nor_the_engine() -> None:
    code = (
        "import sys; from slackline.cli import main; code = main(['run', '--help']); "
        "sys.exit(code or 'torch' in sys.modules or 'slackline._native' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
