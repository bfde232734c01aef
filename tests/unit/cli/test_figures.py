"""Tests of the figures that all commands print: rounded, with units, and with right plurals."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from figure_faults import faults_of
from recorded_jobs import unpack
from rich.console import Console

from slackline import circuit
from slackline.cli import main
from slackline.errors import UsageError
from slackline.lab import require
from slackline.views.terminal import Report

sys.path.insert(0, str(Path(__file__).parents[1] / "predict"))
from written_runs import Written

sys.path.pop(0)

ROOT = Path(__file__).parents[3]
_SLACKLINE = [sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())"]
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
    ["simulate", str(ROOT / "examples/experiments/changing_links.toml")],
    ["reproduce", "--only", "aggregation-circuit"],
    ["reproduce", "--only", "zero-bubble-order"],
    ["doctor"],
]
BENCHES = [
    ["all-gather", "--ranks", "1", "--to", "2KiB"],
    ["reduce-scatter", "--ranks", "3", "--from", "7777777B", "--to", "7777777B"],
]
CHANGES = ["nics 2", "rate 1234567kbit", "hosts 3; latency 1234567ns", "plan mesh"]
_SEND = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    for _ in range(3):
        sender.sendto(b"figures", ("10.77.0.2", 9))
"""


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


def ended(*words: object, folder: Path, **variables: str) -> str:
    """Return all that a command prints, which runs in a process of its own and succeeds."""
    done = subprocess.run(
        [*_SLACKLINE, *map(str, words)],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder), "COLUMNS": "200", **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    return text


@pytest.mark.slow
@pytest.mark.parametrize("words", BENCHES, ids=" ".join)
def test_a_measured_collective_has_figures_for_people(tmp_path: Path, words: list[str]) -> None:
    text = ended("bench", *words, "--time", "5ms", folder=tmp_path)
    lines = text.splitlines()
    assert lines[0].endswith("float32"), text  # no warning stands before the table
    assert all(line.endswith("right") for line in lines[2:])
    assert faults_of(text) == []


def test_predictions_have_figures_for_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Written(steps=6, rate_bps=123_456_789, one_way_ns=123_456).write(tmp_path)
    changes = [word for change in CHANGES for word in ("--change", change)]
    assert main(["what-if", str(tmp_path), "--samples", "4", *changes]) == 0
    lines = capsys.readouterr().out
    assert "as measured" in lines
    for change in CHANGES:  # as the user wrote it
        assert change.split(";")[0] in lines
        for part in change.split("; "):
            lines = lines.replace(part, "")
    assert faults_of(lines) == []


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_search_of_settings_has_figures_for_people(tmp_path: Path) -> None:
    job = ROOT / "benchmarks/tune-gain/jobs/overlapped.py"
    search = ("--ranks", 2, "--steps", 5, "--trials", 1)
    text = ended("tune", *search, job, folder=tmp_path) + (tmp_path / "tuned.toml").read_text()
    assert "candidates; to be tried: " in text
    assert "│ fresh │ defaults" in text
    # The file has versions and exact settings.
    exact = ("# Date", "# A trial", "group_bytes")
    lines = [line for line in text.splitlines() if not line.startswith(exact)]
    assert faults_of("\n".join(lines)) == []


@pytest.fixture
def lab_name() -> Iterator[str]:
    """Provide a name for a lab, and remove the lab at the end."""
    try:
        require()
    except UsageError as error:
        pytest.skip(str(error))
    name = f"f{os.getpid()}"
    yield name
    main(["lab", "down", "--name", name])


@pytest.mark.parametrize("switch", ["kernel", "user"])
def test_a_lab_is_described_by_figures_for_people(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], lab_name: str, switch: str
) -> None:
    shape = ["--hosts", "2", "--rate", "123456789bit", "--burst", "100001B", "--switch", switch]
    assert main(["lab", "up", *shape, "--name", lab_name]) == 0
    ended("lab", "exec", "--name", lab_name, 0, "--", sys.executable, "-c", _SEND, folder=tmp_path)
    assert main(["lab", "status", "--name", lab_name]) == 0
    text = "".join(capfd.readouterr())
    assert "1 NIC of 123 Mbit/s" in text
    assert faults_of(text) == []


@pytest.mark.slow
@pytest.mark.parametrize("circuits", ["adder", "lanes"])
def test_the_resources_of_a_circuit_have_figures_for_people(
    capsys: pytest.CaptureFixture[str], circuits: str
) -> None:
    pytest.importorskip("amaranth", reason="amaranth is missing: slackline-torch[circuit]")
    if circuit.yosys_version() is None:
        pytest.skip("Yosys is not installed (Debian: apt install yosys)")
    asked = ["--circuits", circuits, "--families", "ecp5", "--lanes", "1"]
    assert main(["circuit", "report", *asked]) == 0
    text = capsys.readouterr().out
    assert "one adder" in text or "1 lane " in text
    assert faults_of(text) == []
