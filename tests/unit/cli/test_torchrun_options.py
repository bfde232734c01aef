"""Tests of torchrun's options among the words of `slackline run`."""

from typing import Any

import pytest
import typer.main

from slackline.cli import app, main
from slackline.cli._job._torchrun import NO_OPTIONS, Torchrun, read_torchrun, torchrun_words
from slackline.errors import UsageError


def taken(*words: str) -> tuple[dict[str, Any], list[str]]:
    """Return the values of slackline's own options, and the words for torchrun."""
    command: Any = typer.main.get_command(app)
    context = command.commands["run"].make_context("slackline run", list(words))
    given = {name: value for name, value in context.params.items() if value not in (None, False)}
    given["script"] = str(given.get("script"))
    return given, torchrun_words(context)


def test_words_of_torchrun_stand_anywhere_before_the_script() -> None:
    given, words = taken(
        *(
            "--max-restarts=3",
            "--ranks",
            "2",
            "--monitor_interval",
            "0.5",
            "-t",
            "3",
            "--standalone",
        ),
        *("--keep", "there", "-n4", "--no-python", "train.py", "--tee", "9", "-m"),
    )
    assert words == [
        *("--max-restarts=3", "--monitor-interval", "0.5", "-t", "3", "--standalone", "--no-python")
    ]
    assert (given["ranks"], str(given["keep"]), given["script"]) == (4, "there", "train.py")
    assert given["arguments"] == ["--tee", "9", "-m"]


def test_an_option_of_both_is_slackline_s_however_it_is_spelled() -> None:
    given, words = taken("--shutdown_timeout", "7", "-m", "job.train")
    assert (given["shutdown_timeout"], given["module"], given["script"]) == ("7", True, "job.train")
    assert words == []


def test_torch_is_not_needed_without_such_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> dict[str, bool]:
        raise AssertionError("torchrun's parser was asked")

    monkeypatch.setattr("slackline.cli._job._torchrun._options", refuse)
    assert taken("--ranks=3", "--output", "all", "--lab", "--", "train.py", "--x")[1] == []
    assert read_torchrun([]) == NO_OPTIONS


def test_a_mistyped_option_is_refused_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--rank", "2", "train.py"]) == 2
    said = capsys.readouterr().err
    assert "No such option: --rank" in said
    assert "--ranks" in said


def test_a_run_without_a_program_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--ranks", "2"]) == 2
    assert capsys.readouterr().err == (
        "slackline: name the program: slackline run --ranks 2 train.py; slackline run --help has "
        "all options\n"
    )


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--nproc-per-node", "3"], Torchrun(ranks=3)),
        (["--nproc-per-node=2", "--nnodes=1", "--standalone"], Torchrun(ranks=2)),
        (
            ["--max-restarts", "2", "--role=a"],
            Torchrun(passed=("--max-restarts", "2", "--role", "a")),
        ),
        (["-t3"], Torchrun(all_output=True)),
        (["--tee", "0:1,1:3"], Torchrun(all_output=True)),
        (["--no-python"], Torchrun(python=False, passed=("--no-python",))),
        (
            ["--nnodes", "2", "--node-rank=1", "--master-addr", "a", "--master-port=7"],
            Torchrun(
                nodes=2,
                node=1,
                meeting=(
                    *("--nnodes", "2", "--node-rank", "1", "--master-addr", "a"),
                    *("--master-port", "7"),
                ),
            ),
        ),
    ],
)
def test_options_are_read_by_torchrun_s_parser(words: list[str], found: Torchrun) -> None:
    assert read_torchrun(words) == found


def test_ranks_of_several_machines_are_numbered_by_their_node() -> None:
    words = ["--nnodes=3", "--node-rank=2", "--master-addr=a"]
    place = read_torchrun(words).place(4)
    assert place is not None
    assert (place.first, place.world) == (8, 12)
    assert read_torchrun(["--max-restarts=1"]).place(4) is None


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--max-restarts", "many"], "argument --max-restarts/--max_restarts: invalid int value"),
        (["--nproc-per-node", "some"], "--nproc-per-node some: "),
        (["--log-dir", "logs"], "--log-dir: slackline run keeps the output of every rank itself"),
        (["-r", "3"], "--redirects: slackline run keeps the output"),
        (
            ["--rdzv-endpoint", "a:1"],
            "--rdzv-endpoint is for a job of several machines: add --nnodes",
        ),
        (["--nnodes", "1:4"], "--nnodes 1:4: slackline run starts a fixed number of machines"),
        (["--nnodes", "x"], "--nnodes must be a number of machines, not 'x'"),
        (
            ["--nnodes", "2"],
            "--nnodes 2 needs --node-rank, --master-addr and --master-port on each",
        ),
        (
            ["--nnodes=2", "--node-rank=0", "--rdzv-backend=c10d"],
            "--nnodes 2 needs --node-rank, --master-addr and --master-port on each machine, or ",
        ),
        (["--nnodes=2", "--node-rank=2"], "--node-rank must be between 0 and 1, not 2"),
    ],
)
def test_options_that_cannot_be_served_are_refused(words: list[str], problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_torchrun(words)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ["--ranks", "2", "--nproc-per-node", "3"],
            "--ranks 2 is not --nproc-per-node 3: give one",
        ),
        (["--hosts", "a,b", "--nnodes=2", "--node-rank=0"], "this machine"),
        (["--lab", "--no-python"], "--nnodes and --no-python are not for a lab: leave out --lab"),
        (["--no-python", "-m"], "a module needs Python: leave out --no-python"),
        (["--output", "9"], "--output must be first, all or a rank from 0 to 3, not '9'"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words, __file__]) == 2
    assert problem in capsys.readouterr().err


def test_a_command_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--no-python", "no-such-command"]) == 2
    assert "there is no command 'no-such-command'" in capsys.readouterr().err
