"""`slackline reproduce` prints published tables beside the simulator's figures."""

import json
from pathlib import Path

import pytest

from slackline.cli import main
from slackline.reproduce import Folder

JOB = """
[job]
iterations = 5
crash = 4
stages = 2
microbatches = 1
forward = "10ms"
backward_input = "10ms"
backward_weight = "10ms"
[[job.runtime]]
name = "one"
schedule = "1f1b"
restart = "1s"
[[job.phase]]
from = 1
lasts = 1
links = [0]
delay = "30ms"
"""
ORDER = ["reproduce", "--only", "zero-bubble-order"]


def test_a_table_has_parameters_figures_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ORDER) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith("zero-bubble-order: A zero-bubble order replayed")
    assert lines[1].startswith("published (simulated): arXiv 2504.19232")
    assert lines[2] == "ours (simulated): slackline simulate zero_bubble_order.toml"
    assert lines[3] == (
        "iteration: stages 4, microbatches 12, forward 10ms, backward_input 10ms, "
        "backward_weight 10ms"
    )
    assert "iteration.network: name first link, links 0, delay 0ms 10ms 20ms" in lines
    assert "zero bubble, first link 20ms 440 ms 440 ms +0.0 %" in lines
    assert "auto within 8 activations, first link 20ms 410 ms" in lines


def test_json_has_every_figure_and_every_parameter(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ORDER, "--only", "aggregation-circuit", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [table["name"] for table in said["tables"]] == [
        "aggregation-circuit",
        "zero-bubble-order",
    ]
    last = said["tables"][0]["rows"][-1]
    assert (last["label"], last["unit"], last["published"]) == ("node, 1 MiB", "Gbit/s", 9.31)
    assert round(last["ours"], 3) == 9.309
    assert round(last["error"], 4) == -0.0001
    assert last["parameters_given"]
    assert not last["deviates"]
    assert said["tables"][1]["parameters"]["iteration"]["microbatches"] == 12
    methods = [(table["published_method"], table["method"]) for table in said["tables"]]
    assert methods == [("simulated", "model"), ("simulated", "simulated")]


def test_names_are_listed_without_a_simulation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == list(Folder().names())


def test_the_list_is_json_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list", "--json", "--only", "job-with-crash"]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert table["name"] == "job-with-crash"
    assert table["title"].startswith("A job of 1,200 iterations")


@pytest.mark.parametrize(
    "further", [["--only", "pcco-step"], ["--json"], ["--list"], ["--plot", "p"]]
)
def test_an_option_that_a_copy_does_not_take_is_refused(
    further: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "--save", str(tmp_path / "copy"), *further]) == 2
    assert capsys.readouterr().err == (
        "slackline: --save only copies all tables: leave out --only, --json, --markdown, --list "
        "and --plot\n"
    )
    assert not (tmp_path / "copy").exists()


def test_a_list_draws_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list", "--plot", str(tmp_path / "plots")]) == 2
    said = "slackline: --list simulates nothing: leave out --plot\n"
    assert capsys.readouterr().err == said
    assert not (tmp_path / "plots").exists()


def test_a_saved_experiment_runs_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "--save", str(tmp_path / "copy")]) == 0
    count = sum(1 for each in (tmp_path / "copy").rglob("*") if each.is_file())
    assert capsys.readouterr().out == f"{count} files in {tmp_path / 'copy'}\n"
    experiment = tmp_path / "copy" / "experiments" / "zero_bubble_order.toml"
    assert main(["simulate", str(experiment), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["kind"] == "iteration"
    assert said["cases"][2]["figures"]["time_ps"] == 440 * 10**9
    assert main([*ORDER, "--from", str(tmp_path / "copy")]) == 0


@pytest.mark.parametrize(
    ("name", "head", "count"),
    [
        (
            "aggregation_circuit",
            "message, onset, senders first sum last sum rate starved buffered",
            6,
        ),
        ("zero_bubble_order", "runtime, network time bubble blocked activations", 6),
    ],
)
def test_simulate_shows_experiments_without_hosts(
    name: str, head: str, count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Folder().save(tmp_path)
    assert main(["simulate", str(tmp_path / "experiments" / f"{name}.toml")]) == 0
    first, *rows = capsys.readouterr().out.splitlines()
    assert " ".join(first.split()) == head
    assert len(rows) == count


def test_simulate_shows_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    assert main(["simulate", str(path)]) == 0
    head, row = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines())
    assert head == "runtime time healthy iteration slowest iteration restart"
    # Four iterations of 50 ms, one of 110 ms, and the restart.
    assert row == "one 1.31 s 50 ms 110 ms 1 s"


def test_figures_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ORDER, "--plot", str(tmp_path)]) == 0
    drawn = tmp_path / "zero-bubble-order.svg"
    assert f"drawn: {drawn}" in capsys.readouterr().out.splitlines()
    assert drawn.read_text().startswith("<?xml")


def test_an_unknown_table_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--only", "nothing"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith('slackline: there is no table "nothing"; tables are aggregation-')
    assert said.out == ""


def test_a_folder_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--from", "no/such"]) == 2
    assert capsys.readouterr().err == "slackline: there is no folder no/such/tables\n"


def test_a_simulation_that_cannot_end_is_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Folder().save(tmp_path)
    experiment = tmp_path / "experiments" / "replicas_slow_gradients.toml"
    experiment.write_text(experiment.read_text().replace("rate 33554Mbit", "down"))
    arguments = ["reproduce", "--from", str(tmp_path), "--only", "pipeline-replicas"]
    assert main(arguments) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("slackline: pipeline-replicas: ")


JOB_OUTPUT = """
import json, os, sys
assert sys.argv[1:] == ["--compare", "slackline", "--epochs", "3", "--json"], sys.argv
assert os.environ["SLACKLINE_ORDER"] == "rank"
if os.environ["RANK"] == "0":
    settings = {"ranks": int(os.environ["WORLD_SIZE"]), "epochs": 3}
    results = [
        {"name": name, "accuracy": 0.5, "parameters": bits}
        for name, bits in (("one", "a0"), ("two", "b0"))
    ]
    print(json.dumps({"settings": settings, "results": results}))
"""


@pytest.mark.slow
def test_networks_that_differ_are_reported_with_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB_OUTPUT)
    assert main(["reproduce", "accuracy", str(script), "--ranks", "2", "--epochs", "3"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{script}: 2 ranks, 3 epochs",
        "  one: accuracy 50%, parameters a0",
        "  two: accuracy 50%, parameters b0",
        "  the trained networks differ",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["accuracy", "no/such.py"],
            "there is no script no/such.py; examples/train_digits.py is in slackline's repository",
        ),
        (["accuracy", __file__, "--ranks", "1"], "ranks must be at least 2, not 1"),
        (["accuracy", __file__, "--epochs", "2"], "epochs must be at least 3, not 2"),
        (
            ["--list", "accuracy"],
            "options of the tables cannot precede accuracy: slackline reproduce accuracy --help "
            "lists its own",
        ),
    ],
)
def test_a_mistake_about_the_accuracy_is_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["reproduce", *arguments]) == 2
    assert capsys.readouterr().err == f"slackline: {message}\n"
