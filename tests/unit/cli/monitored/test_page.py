"""Tests of `slackline top --page`: its mistakes in one line, its address, and its end."""

import http.client
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from made_records import header, write

from slackline.cli import main
from slackline.records import encode, file_of

pytest.importorskip("aiohttp", reason="the page needs slackline-torch[dashboard]")

COMMAND = [sys.executable, "-c", "from slackline.cli import main; raise SystemExit(main())"]


def refused(directory: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main(["top", "--page", *options, str(directory)]) == 2
    return capsys.readouterr().err.removeprefix("slackline: ").rstrip("\n")


def test_a_directory_without_records_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = tmp_path / "nowhere"
    assert refused(nowhere, capsys) == f"there is no directory {str(nowhere)!r}"
    none = f"{str(tmp_path)!r} has no telemetry: no file rank-*.jsonl with a record"
    assert refused(tmp_path, capsys) == none
    file_of(tmp_path, 0).touch()
    assert refused(tmp_path, capsys) == none


def test_records_of_another_version_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, 0, header(0, version=1))
    assert refused(tmp_path, capsys) == (
        f"{file_of(tmp_path, 0)}:1: the records have version 1 of the schema, and this slackline "
        "reads version 2; the rest of the file is left out"
    )


def test_a_file_with_nothing_but_a_cut_line_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file_of(tmp_path, 0).write_text(encode(header(0))[:20])
    assert refused(tmp_path, capsys) == (
        f"{file_of(tmp_path, 0)}:1: the last line is cut; it may still be written"
    )


def test_a_wrong_port_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, 0, header(0))
    message = "an address must be like 10.0.0.9:7000 or [fd00::9]:7000, not '127.0.0.1:70000'"
    assert refused(tmp_path, capsys, "--page-listen", "127.0.0.1:70000") == message


def test_a_missing_package_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 0, header(0))
    for name in [each for each in sys.modules if each.startswith("slackline.views.page")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert refused(tmp_path, capsys) == (
        "the page needs the package aiohttp: pip install 'slackline-torch[dashboard]'"
    )


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_signal_ends_the_command(tmp_path: Path, number: signal.Signals) -> None:
    write(tmp_path, 0, header(0))
    process = subprocess.Popen(
        [*COMMAND, "top", "--page-listen", "127.0.0.1:0", str(tmp_path)],
        env=os.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("the page of this job: http://127.0.0.1:")
    port = int(line.partition("127.0.0.1:")[2].partition("/")[0])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/")
    assert connection.getresponse().status == 200
    connection.close()
    process.send_signal(number)
    _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (0, "")


@pytest.mark.parametrize("once", ["--once", "--json"])
def test_a_page_is_not_printed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], once: str
) -> None:
    given = "--json" if once == "--json" else "--once with --page"
    message = f"{given} prints once, and servers run until Ctrl-C: leave out one"
    assert refused(tmp_path, capsys, once) == message


def test_run_refuses_a_port_in_use_before_any_rank_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(3)")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["run", "--page-listen", f"127.0.0.1:{port}", str(script)]) == 2
    message = f"port {port} of 127.0.0.1 is in use: choose another one, or 0 for any free port"
    assert capsys.readouterr().err == f"slackline: {message}\n"
