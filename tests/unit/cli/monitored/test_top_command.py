"""Tests of the command `slackline top`: plain text, JSON, a terminal, and wrong arguments."""

import json
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from made_records import START_NS
from monitored_files import write_job

from slackline.cli import main
from slackline.records import SCHEMA_VERSION, file_of

_TOP = "import sys; from slackline.cli import main; sys.exit(main(['top', *sys.argv[1:]]))"


def test_once_prints_plain_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_job(tmp_path)
    assert main(["top", str(tmp_path), "--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("3 ranks on 3 hosts, ")
    assert lines[0].endswith(" step 4, 3 ranks silent, 1 direction disturbed")
    assert "0:00:02  link 0>1 is slow since 1.0 s: 31 ms over its usual 200 us" in lines
    assert "\x1b" not in "".join(lines)


def test_json_has_ranks_links_findings_and_decisions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "telemetry").mkdir()
    write_job(tmp_path / "telemetry")
    assert main(["top", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["directory"], found["world_size"]) == (str(tmp_path / "telemetry"), 3)
    assert found["begun_ns"] == START_NS
    rank = found["ranks"][1]
    assert rank.pop("quiet_ns") == found["time_ns"] - rank["seen_ns"]
    assert rank == {
        "rank": 1,
        "host": "host1",
        "process": 1001,
        "processes": 1,
        "state": "silent",
        "seen_ns": START_NS + 61 * 10**9,
        "step": 4,
        "steps_per_second": 50.0,
        "exposed_ns": 5_000_000,
        "exposed_share": 0.25,
        "operations": {
            "all_reduce": {
                "count": 2,
                "failed": 0,
                "bytes": 2000,
                "running_ns": 4_000_000,
                "waited_ns": 1_000_000,
            }
        },
        "device": None,
    }
    assert found["links"][0] == {
        "source": 0,
        "target": 1,
        "rail": 0,
        "kind": "tcp",
        "bits_per_second": 1e8,
        "round_trip_ns": 31_400_000,
        "condition": "slow",
        "over_ns": 31_000_000,
        "sentence": "link 0>1 is slow since 1.0 s: 31 ms over its usual 200 us",
    }
    assert [each["sentence"] for each in found["findings"]] == [found["links"][0]["sentence"]]
    assert found["decisions"][0]["choice"] == "ring from 64KiB"
    assert (found["causes"], found["problems"]) == ([], [])


@pytest.mark.parametrize(
    ("leave", "code"),
    [
        (b"q", 0),
        pytest.param(signal.SIGINT, 0, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_terminal_is_left_as_it_was(tmp_path: Path, leave: bytes | int, code: int) -> None:
    write_job(tmp_path)
    sizes = {"COLUMNS", "LINES"}  # rich takes the window's size from them, if they are set
    environment = {name: value for name, value in os.environ.items() if name not in sizes}
    environment["TERM"] = "xterm"
    here, there = pty.openpty()
    try:
        termios.tcsetwinsize(there, (24, 50))
        before = termios.tcgetattr(there)
        process = subprocess.Popen(
            [sys.executable, "-c", _TOP, str(tmp_path), "--interval", "1h"],
            stdin=there,
            stdout=there,
            stderr=there,
            env=environment,
            start_new_session=True,
        )
        try:
            shown = _read_until(here, b"0>1   slow")
            assert b"\x1b[?1049h" in shown, "the screen is the terminal's second one"
            assert b"q leaves" in shown
            # The window changes; the screen follows at once, although the interval is an hour.
            termios.tcsetwinsize(there, (24, 120))
            process.send_signal(signal.SIGWINCH)
            _read_until(here, b"steps/s  exposed  share  operations")
            if isinstance(leave, bytes):
                os.write(here, leave)
            else:
                process.send_signal(leave)
            rest = _read_until(here, b"\x1b[?1049l")
            assert process.wait(60) == code
        finally:
            process.kill()
            process.wait()
        assert b"\x1b[?25h" in rest, "the cursor is shown again"
        assert termios.tcgetattr(there) == before
    finally:
        os.close(here)
        os.close(there)


def _read_until(terminal: int, wanted: bytes) -> bytes:
    """Read a terminal's output until `wanted` has come; the test's timeout is the limit."""
    found = b""
    while wanted not in found:
        found += os.read(terminal, 65536)
    return found


def test_a_directory_without_records_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", str(tmp_path), "--once"]) == 2
    assert capsys.readouterr().err == (
        f"slackline: {str(tmp_path)!r} has no telemetry: no file rank-*.jsonl with a record\n"
    )
    assert main(["top", str(tmp_path / "nowhere"), "--once"]) == 2
    assert capsys.readouterr().err == (
        f"slackline: there is no directory {str(tmp_path / 'nowhere')!r}\n"
    )


def test_records_of_another_version_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_job(tmp_path, ranks=1)
    file = file_of(tmp_path, 0)
    file.write_text(file.read_text().replace(f'"version":{SCHEMA_VERSION},', '"version":9,'))
    assert main(["top", str(tmp_path), "--json"]) == 2
    assert capsys.readouterr().err == (
        f"slackline: {file}:1: the records have version 9 of the schema, and this slackline reads "
        f"version {SCHEMA_VERSION}; the rest of the file is left out\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "stdout is no terminal: add --once, --json, --page or --metrics"),
        (("--once", "--json"), "--once and --json exclude each other"),
        (("--once", "--interval", "50ms"), "--interval must be at least 100ms, not 50ms"),
        (
            ("--once", "--interval", "1"),
            "a duration must be a number and one of ns, us, ms, s, min, h, not '1'",
        ),
    ],
)
def test_a_wrong_argument_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert main(["top", str(tmp_path), *arguments]) == 2
    assert capsys.readouterr().err == f"slackline: {message}\n"
