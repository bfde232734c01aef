"""Tests of `slackline plan pipeline --model`: cuts of a model's layers into stages."""

import json
from pathlib import Path
from typing import Any

import pytest

from slackline.cli.plan import run
from slackline.errors import UsageError

EXAMPLE = str(Path(__file__).parents[3] / "examples" / "mixed_hosts.toml")
CALL = ["pipeline", "--model", EXAMPLE, "--microbatches", "8", "--effort", "0.1"]
TEXTS = {
    "backward_input": "10ms",
    "backward_weight": "10ms",
    "output": "0B",
    "parameters": "1MiB",
    "activation": "1MiB",
}
LAYER = {"forward": "10ms", **TEXTS}
HOST = {"name": "a", "devices": 2, "memory": "1GiB"}


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def saved(tmp_path: Path, name: str, **content: object) -> str:
    path = tmp_path / name
    path.write_text(json.dumps(content))
    return str(path)


def test_the_example_gives_the_fast_hosts_more_layers(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *CALL)
    sizes: dict[str, int] = {"new": 0, "old": 0}
    for stage in found["stages"]:
        sizes[stage["host"]] += stage["last_layer"] - stage["first_layer"] + 1
        assert stage["peak_activations"] <= stage["activation_cap"]
    assert sum(sizes.values()) == 10
    assert sizes["new"] > sizes["old"]
    assert found["bound_holds_for_any_cut"] is True
    assert found["lower_bound_ms"] <= found["iteration_ms"]
    assert found["above_bound_share"] == pytest.approx(
        found["iteration_ms"] / found["lower_bound_ms"] - 1
    )
    assert found["planning_seconds"] > 0
    for order in found["orders"]:
        assert sorted(order) == sorted(f"{kind}{m}" for kind in "FBW" for m in range(8))


def test_the_text_has_a_row_for_each_stage_and_the_figures(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = saved(tmp_path, "model.json", layer=[LAYER] * 4, host=[HOST])
    csv = tmp_path / "plan.csv"
    call = ["pipeline", "--model", model, "-m", "6", "-s", "2", "--write-csv", str(csv)]
    assert run(call) == 0
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(lines[0].split()) == (
        "stage first layer last layer host device forward backward input backward weight "
        "activation cap peak activations delay"
    )
    assert lines[1].split()[:9] == ["0", "0", "1", "a", "0", "20", "ms", "20", "ms"]
    assert lines[2].split()[:9] == ["1", "2", "3", "a", "1", "20", "ms", "20", "ms"]
    assert lines[4:6] == [
        "iteration: 380 ms for 6 microbatches",
        "lower bound of any cut: 380 ms; the iteration is 0% above it",
    ]
    assert lines[6].startswith("order: auto: 380 ms by ")
    assert lines[7].startswith("planned in ")
    assert len(csv.read_text().splitlines()) == 2


def test_layers_and_hosts_may_be_in_two_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = saved(tmp_path, "model.json", layer=[LAYER] * 2)
    hosts = saved(tmp_path, "hosts.json", host=[HOST])
    found = answer(capsys, "pipeline", "--model", model, "--cluster", hosts, "-m", "4")
    assert [stage["device"] for stage in found["stages"]] == [0, 1]
    assert found["iteration_ms"] == 130


@pytest.mark.parametrize(
    ("model", "cluster", "message"),
    [
        ({"layer": [TEXTS]}, None, 'model.json: [layer 0] lacks "forward"'),
        ({"host": [HOST]}, None, "model.json: the file has no [[layer]], so it has no times"),
        (
            {"layer": [LAYER] * 2},
            None,
            "model.json: the file has no [[host]]; give a file that has with --cluster",
        ),
        (
            {"layer": [LAYER] * 2, "host": [HOST]},
            {"host": [HOST]},
            "model.json: the file has hosts, and so does --cluster; give one of them",
        ),
        ({"layer": [LAYER] * 2}, {"layer": [LAYER]}, "hosts.json: the file has no [[host]]"),
        (
            {"layer": [LAYER] * 2},
            {"layer": [LAYER], "host": [HOST]},
            "hosts.json: the file has layers, and so does --model; give one of them",
        ),
    ],
)
def test_files_that_do_not_go_together_are_refused(
    tmp_path: Path, model: dict[str, object], cluster: dict[str, object] | None, message: str
) -> None:
    call = ["pipeline", "--model", saved(tmp_path, "model.json", **model), "-m", "4"]
    if cluster is not None:
        call += ["--cluster", saved(tmp_path, "hosts.json", **cluster)]
    with pytest.raises(UsageError) as error:
        run(call)
    assert str(error.value) == f"{tmp_path}/{message}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--times", "1,1,1"],
            "--times does not go with --model, which chooses times, caps and order",
        ),
        (
            ["--schedule", "1f1b"],
            "--schedule does not go with --model, which chooses times, caps and order",
        ),
        (["--stages", "5"], "5 stages need at least 5 devices; there are 4"),
        (["--effort", "0"], "effort must be positive and finite, not 0"),
    ],
)
def test_a_wrong_option_is_named(options: list[str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        run([*CALL, *options])
    assert str(error.value) == message


def test_what_the_files_lack_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--microbatches is needed with --model$"):
        run(["pipeline", "--model", EXAMPLE])
    with pytest.raises(UsageError, match=r"^--cluster needs --model$"):
        run(["pipeline", "--cluster", EXAMPLE])
    with pytest.raises(UsageError, match=r"^cannot read nowhere\.toml: No such file or directory$"):
        run(["pipeline", "--model", "nowhere.toml", "-m", "4"])
    missing = tmp_path / "no" / "plan.csv"
    with pytest.raises(UsageError, match=r"^cannot write .*plan\.csv: No such file or directory$"):
        run([*CALL, "--write-csv", str(missing)])
