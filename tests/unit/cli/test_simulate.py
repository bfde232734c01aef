"""`slackline simulate` shows what an experiment takes, as a table or as JSON."""

import json
from pathlib import Path

import pytest

from slackline.cli import main

EXPERIMENTS = Path(__file__).parents[3] / "examples" / "experiments"
HUGE = ("hundred-thousand", "hundred-thousand-pipeline", "hundred-thousand-uneven")
IDEAL = """
[hosts]
count = 4
rate = "8Gbit"
[wire]
header_bytes = 0
packet_overhead_bytes = 0
switch = "cut-through"
[collective]
plan = ["ring", "direct"]
size = "64KiB"
"""


@pytest.fixture
def ideal(tmp_path: Path) -> Path:
    path = tmp_path / "ideal.toml"
    path.write_text(IDEAL)
    return path


def test_the_table_has_a_row_for_each_case(ideal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(ideal)]) == 0
    head, ring, direct = capsys.readouterr().out.splitlines()
    assert " ".join(head.split()) == "plan time lower bound share most sent frames resent"
    assert " ".join(ring.split()) == "ring 98.3 us 98.3 us 100% 96 KiB 24 0"
    assert " ".join(direct.split()) == "direct 197 us 197 us 100% 192 KiB 12 0"


def test_json_has_integers_in_picoseconds(ideal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(ideal), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["kind"] == "collective"
    assert [case["name"] for case in said["cases"]] == ["ring", "direct"]
    # Each rank sends 2 (n - 1) / n of 64 KiB, at a nanosecond a byte.
    assert said["cases"][0]["figures"]["time_ps"] == 6 * 16384 * 1000


@pytest.mark.parametrize("name", ["all_reduce", "hybrid", "overlap", "slow_link"])
def test_every_example_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = EXPERIMENTS / f"{name}.toml"
    assert main(["simulate", str(path)]) == 0
    assert main(["simulate", str(path), "--json"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(json.loads(said[-1])["cases"]) >= 2


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", HUGE)
def test_an_example_of_a_hundred_thousand_ranks_runs(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(EXPERIMENTS / f"{name}.toml"), "--json"]) == 0
    for case in json.loads(capsys.readouterr().out)["cases"]:
        assert case["figures"]["events"] > 0


@pytest.mark.parametrize("name", HUGE)
def test_a_hundredth_of_each_huge_example_runs(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (EXPERIMENTS / f"{name}.toml").read_text()
    for whole, part in (("12500", "125"), ("4711", "47"), ("638400000B", "6384000B")):
        text = text.replace(whole, part)
    text = text.replace("replicas = 6250", "replicas = 62").replace("409600000B", "4063232B")
    path = tmp_path / f"{name}.toml"
    path.write_text(text)
    assert main(["simulate", str(path), "--json"]) == 0
    for case in json.loads(capsys.readouterr().out)["cases"]:
        assert case["figures"]["events"] > 0


def test_there_is_an_example_of_every_kind() -> None:
    names = sorted(path.stem for path in EXPERIMENTS.glob("*.toml"))
    assert names == ["all_reduce", "changing_links", *HUGE, "hybrid", "overlap", "slow_link"]


def test_a_collective_that_cannot_end_is_code_1(
    ideal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ideal.write_text('faults = "link 0-1 down"\n' + IDEAL)
    assert main(["simulate", str(ideal)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("slackline: ring: host 0 cannot reach host 1: all paths are down")


def test_a_mistake_in_the_file_is_one_line(ideal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ideal.write_text(IDEAL.replace("64KiB", "64K"))
    assert main(["simulate", str(ideal)]) == 2
    assert capsys.readouterr().err.startswith("slackline: ideal.toml: [collective] size: a size")


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "no/such.toml"]) == 2
    said = "slackline: cannot read no/such.toml: No such file or directory\n"
    assert capsys.readouterr().err == said


DRAWN = """
[iteration]
stages = 2
microbatches = 4
forward = "10ms"
backward_input = "10ms"
backward_weight = "10ms"
[[iteration.runtime]]
name = "one"
schedule = "1f1b"
[[iteration.network]]
name = "all"
links = [0]
drawn = { normal = ["30ms", "10ms"], lasts = ["5ms", "10ms"] }
"""
NODE = """
[node]
workers = 2
rate = "10Gbit"
payload = "1000B"
overhead = "250B"
message = "4000B"
"""
JOB = DRAWN.replace("[iteration]", "[job]\niterations = 2").replace("iteration.", "job.")
JOB = JOB.replace('[[job.network]]\nname = "all"', "[[job.phase]]\nfrom = 0\nlasts = 2")


@pytest.mark.parametrize(
    ("text", "figure", "varies"),
    [(DRAWN, "time_ps", True), (JOB, "time_ps", True), (NODE, "last_ps", False)],
)
def test_runs_have_a_mean_and_a_spread(
    text: str, figure: str, varies: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "drawn.toml"
    path.write_text(text)
    assert main(["simulate", str(path), "--runs", "4", "--json"]) == 0
    (case,) = json.loads(capsys.readouterr().out)["cases"]
    found = case["figures"]
    times = found["runs_ps"]
    assert (found["figure"], found["runs"], len(times)) == (figure, 4, 4)
    assert found["mean_ps"] == round(sum(times) / 4)
    assert (found["least_ps"], found["most_ps"]) == (min(times), max(times))
    assert (found["deviation_ps"] > 0) == varies
    assert main(["simulate", str(path), "--json"]) == 0
    (once,) = json.loads(capsys.readouterr().out)["cases"]
    assert once["figures"][figure] == times[0]


def test_the_runs_of_a_collective_lose_other_packets(
    ideal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ideal.write_text('faults = ["link 0-1 loss 20%"]\n' + IDEAL)
    assert main(["simulate", str(ideal), "--runs", "5"]) == 0
    faults, head, ring, _ = capsys.readouterr().out.splitlines()
    assert faults.startswith("faults: link 0-1 loss")
    assert " ".join(head.split()) == "plan mean of 5 runs deviation least most"
    _, *cells = " ".join(ring.split()).split(" ")
    least, most = cells[-4:-2], cells[-2:]
    assert least != most


def test_a_trace_lies_beside_the_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.trace").write_text("0;0_1;0.03\n")
    path = tmp_path / "traced.toml"
    links = DRAWN.partition("links")[0]
    path.write_text(f'{links}trace = "a.trace"\n')
    assert main(["simulate", str(path)]) == 0
    capsys.readouterr()
    path.write_text(f'{links}trace = "b.trace"\n')
    assert main(["simulate", str(path)]) == 2
    said = "slackline: cannot read b.trace: No such file or directory\n"
    assert capsys.readouterr().err == said
