"""Tests of `slackline trace` on written telemetry."""

import json
import os
import pty
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from made_records import START_NS, header, operations, write

from slackline.cli import main
from slackline.records import GroupOpened, encode, file_of


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Write a run of one rank with one operation."""
    directory = tmp_path / "run"
    directory.mkdir()
    opened = GroupOpened(rank=0, time_ns=START_NS, size=1, epoch=7, members=(0,))
    row = (1, 0, -1, 400, 1, 7, -1, 0, 0, 1, 1, 1000, 1100, 2000, 500, 0)
    write(directory, 0, header(0, host="alone"), opened, operations(0, row))
    return directory


@pytest.mark.parametrize("form", ["perfetto", "chrome", "otlp"])
def test_each_format_is_written(run: Path, capfd: pytest.CaptureFixture[str], form: str) -> None:
    output = run.parent / "trace"
    output.write_text("the former trace")
    assert main(["trace", str(run), "--format", form, "--output", str(output)]) == 0
    written = output.read_bytes()
    assert b"all_reduce" in written
    if form != "perfetto":
        assert isinstance(json.loads(written), dict)
    counted = "1 rank, 1 span" if form == "otlp" else "1 rank, 1 operation, 0 arrows"
    assert capfd.readouterr().err == f"{counted}\n"
    assert sorted(path.name for path in run.parent.iterdir()) == ["run", "trace"]


def test_the_default_output_is_standard_output(run: Path) -> None:
    code = "import sys; from slackline.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "trace", str(run), "--format", "chrome"]
    done = subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert len(json.loads(done.stdout)["traceEvents"]) > 3


def test_a_terminal_is_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours), os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        assert main(["trace", str(run)]) == 2
    told = capfd.readouterr().err
    assert told == "slackline: a trace is not for a terminal: give --output FILE\n"


def test_a_damaged_run_leaves_the_former_trace(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = run.parent / "trace"
    output.write_text("the former trace")
    with file_of(run, 0).open("a") as file:
        # The wrong value is found when a part of the trace is written.
        row = (99, 0, -1, 400, 1, 7, -1, 0, 0, 1, 1, 1000, 1100, 2000, 500, 0)
        file.write(encode(operations(0, row)) + "\n")
    assert main(["trace", str(run), "--output", str(output)]) == 2
    told = capfd.readouterr().err
    assert told.startswith(f"slackline: {file_of(run, 0)}:4: the record is damaged")
    assert output.read_text() == "the former trace"
    assert sorted(path.name for path in run.parent.iterdir()) == ["run", "trace"]


def test_damaged_lines_are_counted_and_left_out(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = run.parent / "trace"
    with file_of(run, 0).open("a") as file:
        file.write('{"record":"operations",\n{"record":\n')
    assert main(["trace", str(run), "--output", str(output)]) == 0
    told = capfd.readouterr().err
    first = f"{file_of(run, 0)}:4: the line is cut or damaged: "
    assert f"slackline: 2 lines are left out, the first of them: {first}" in told


def test_an_output_that_cannot_be_written_is_named(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = run / "nowhere" / "trace"
    assert main(["trace", str(run), "--output", str(output)]) == 2
    told = f"slackline: cannot write {output}: No such file or directory\n"
    assert capfd.readouterr().err == told


def test_a_pipe_is_written_directly(run: Path) -> None:
    pipe = run.parent / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_bytes)
        assert main(["trace", str(run), "--format", "chrome", "--output", str(pipe)]) == 0
        assert len(json.loads(read.result(60))["traceEvents"]) > 3
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("form", "library", "told"),
    [
        (
            "perfetto",
            "perfetto.trace_builder.proto_builder",
            "traces for Perfetto need the library perfetto: pip install 'slackline-torch[trace]'",
        ),
        (
            "otlp",
            "opentelemetry.exporter.otlp.json.file.trace_exporter",
            "spans need the libraries of OpenTelemetry: "
            "pip install 'slackline-torch[opentelemetry]'",
        ),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    form: str,
    library: str,
    told: str,
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    output = run.parent / "trace"
    assert main(["trace", str(run), "--format", form, "--output", str(output)]) == 2
    assert capfd.readouterr().err == f"slackline: {told}\n"
    assert not output.exists()
