"""Tests of the figures that all commands print: rounded, with units, and with right plurals."""

import re
from pathlib import Path

import pytest
from recorded_jobs import unpack
from rich.console import Console

from slackline.cli import main
from slackline.views.terminal import Report

ROOT = Path(__file__).parents[3]
JOBS = ("cable", "direction", "half", "pipeline")
MODEL = ["plan", "pipeline", "--model", str(ROOT / "examples/mixed_hosts.toml")]
PIPELINE = ["plan", "pipeline", "--times", "4ms,7ms,3ms", "--effort", "0.1"]
STUDIES = [
    ["plan", "collective", "--ranks", "3", "--plan", "ring", "--size", "7777777B"],
    ["plan", "collective", "--ranks", "5", "--size", "7777777B"],
    [*PIPELINE, "-s", "1", "-m", "1"],
    [*PIPELINE, "-s", "3", "-m", "4", "--memory", "2"],
    [*PIPELINE, "-s", "3", "-m", "4", "--memory", "2", "--compare"],
    [*MODEL, "-s", "2", "-m", "4", "--effort", "0.1"],
    ["simulate", str(ROOT / "examples/experiments/slow_link.toml")],
    ["simulate", str(ROOT / "examples/experiments/overlap.toml")],
    ["simulate", str(ROOT / "examples/experiments/hybrid.toml")],
    ["reproduce", "--only", "aggregation-circuit"],
    ["reproduce", "--only", "zero-bubble-order"],
    ["doctor"],
]
_WORDS = ("absorbs", "us", "ms", "ns", "is", "was", "has", "as")
_NAME = re.compile(r"(/[\w./-]+)|\b\d+(\.\d+){2,}\b|[\w.-]+\.(toml|jsonl|py)\b")


def faults_of(text: str) -> list[str]:
    """Return the figures of a text that people can hardly read."""
    text = _NAME.sub("NAME", text)
    found = re.findall(r"\d\.?\d*e[+-]?\d+\b", text)
    found += re.findall(r"\b\d{5,} ?(?:bytes|B)\b|\b\d{5,}[kKMG]i?B\b", text)
    plurals = re.findall(r"(?<![\d.,:-])\b1 ([a-z]+s)\b", text)
    found += [f"1 {word}" for word in plurals if word not in _WORDS and not word.endswith("ss")]
    for number in re.findall(r"(?<![\w.])\d+\.\d+(?! s\b)", text):  # A moment has one decimal.
        if len(number.replace(".", "").lstrip("0")) > 3:
            found.append(number)
    return found


@pytest.mark.parametrize(
    "text",
    [
        "1.49e+03 us",
        "1.291e+04 Mbit/s",
        "8388608 bytes",
        "6687648B",
        "17451KiB",
        "1 groups",
        "1234.5 ms",
        "0.01234",
    ],
)
def test_a_figure_that_is_hard_to_read_is_found(text: str) -> None:
    assert faults_of(f"as tried: {text}, see 10.77.1.3 and /tmp/1e5.toml") != []


def test_figures_for_people_are_no_faults() -> None:
    assert faults_of("1.49 ms, 12.9 Gbit/s, 8 MiB, 1 group, 1 us, since 1234.5 s, 99.9%") == []


@pytest.mark.parametrize("name", JOBS)
def test_the_commands_that_read_a_job_print_figures_for_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    unpack(name, tmp_path)
    assert main(["why", str(tmp_path)]) == 0
    assert main(["top", str(tmp_path), "--once"]) == 0
    output = tmp_path / "trace.json"
    assert main(["trace", str(tmp_path), "--format", "chrome", "--output", str(output)]) == 0
    captured = capsys.readouterr()
    report = Report(tmp_path, ranks=4, unix=lambda: 2**62)
    report.update()
    console = Console(width=300)
    for table in (report.table(), report.pipelines(), report.summary()):
        if table is not None:
            console.print(table)
    told = "\n".join([*report.news(ended=True), report.progress(), *report.problems()])
    text = "\n".join((captured.out, captured.err, told, capsys.readouterr().out))
    assert "job" in text
    assert faults_of(text) == []


@pytest.mark.parametrize("command", STUDIES, ids=" ".join)
def test_the_commands_that_study_and_check_print_figures_for_people(
    capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert main(command) in (0, 1)  # A machine may have faults that the doctor finds.
    # Reproductions begin with the settings of the experiment, which are exact.
    lines = "".join(capsys.readouterr()).splitlines()
    figures = [line for line in lines if command[0] != "reproduce" or not line.startswith("  ")]
    assert faults_of("\n".join(figures)) == []
