"""Tests that `slackline aggregate` refuses wrong arguments and names the value."""

import socket
from pathlib import Path

import pytest

from slackline.cli import main

HERE = ("--listen", "127.0.0.1:0")
FEW = ("--workers", "4")
LIKE = "an address must be like 10.0.0.9:7000 or [fd00::9]:7000"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--listen", "7000", *FEW), f"{LIKE}, not '7000'"),
        (("--listen", "a:x", *FEW), f"{LIKE}, not 'a:x'"),
        (("--listen", "203.0.113.9:7000", *FEW), "'203.0.113.9' is not an address of this host"),
        ((*HERE, "--workers", "1"), "workers must be 2 to 255, not 1"),
        ((*HERE, "--workers", "256"), "workers must be 2 to 255, not 256"),
        ((*HERE, *FEW, "--memory", "1KiB"), "memory must be at least 16 MiB, not 1 KiB"),
        (
            (*HERE, *FEW, "--nic", "cirquit"),
            "nic must be one of software, twin, circuit, not 'cirquit'",
        ),
        (
            (*HERE, "--workers", "17", "--nic", "twin"),
            "an aggregation node has at most 16 ports, not 17",
        ),
        ((*HERE, *FEW, "--onset", "-1"), "onset must be 0 to 4294967294, not -1"),
        (
            (*HERE, *FEW, "--key", "no/such/key"),
            "the key 'no/such/key' cannot be read: No such file or directory",
        ),
        (
            ("--listen", "0.0.0.0:0", *FEW),
            "an aggregator at 0.0.0.0 needs a key, since other hosts reach that address: give "
            "--key FILE, or --without-key to serve them all",
        ),
    ],
)
def test_a_wrong_value_is_named(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["aggregate", *arguments]) == 2
    assert capsys.readouterr().err == f"slackline: {message}\n"


def test_a_port_that_is_taken_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["aggregate", "--listen", f"127.0.0.1:{port}", *FEW]) == 2
    assert capsys.readouterr().err.startswith(f"slackline: cannot listen at 127.0.0.1:{port}: ")


def test_a_key_that_is_too_short_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key"
    key.write_text("short")
    assert main(["aggregate", *HERE, *FEW, "--key", str(key)]) == 2
    assert capsys.readouterr().err == (
        f"slackline: the key {str(key)!r} must have at least 16 bytes, not 5\n"
    )
