"""Tests of the command `slackline lab` and its subcommands up, exec, faults, status and down."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from waiting import until

from slackline.cli import lab as commands
from slackline.cli import main
from slackline.lab import Lab, LabOptions, Record, _daemon, _ownership, find

_SLACKLINE = [sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())"]

Slackline = Callable[..., tuple[int, str, str]]
"""slackline(*arguments): `slackline lab` in this process; its exit code, stdout and stderr."""


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*_SLACKLINE, "lab", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.fixture
def slackline(capfd: pytest.CaptureFixture[str]) -> Slackline:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["lab", *arguments])
        return code, *capfd.readouterr()

    return run


@pytest.fixture
def name() -> Iterator[str]:
    """Provide a name for a lab, and remove the lab when the test is over."""
    name = f"c{os.getpid()}"
    yield name
    main(["lab", "down", "--name", name])
    assert left(name) == []


def left(name: str) -> list[str]:
    folders = (Path("/run/netns"), Path("/etc/netns"), Path("/run/slackline/labs"))
    return [
        path.name
        for folder in folders
        if folder.exists()
        for path in folder.iterdir()
        if path.stem == name or path.name.startswith(f"slackline-{name}-")
    ]


def test_a_lab_stands_until_it_is_taken_down(slackline: Slackline, name: str) -> None:
    assert slackline("up", "--hosts", "2", "--nics", "2", "--rate", "1Gbit", "--name", name) == (
        0,
        f"lab '{name}': 2 hosts with 2 NICs of 1 Gbit/s, kernel switch\n"
        "  host 0: eth0 10.77.0.1, eth1 10.77.1.1\n"
        "  host 1: eth0 10.77.0.2, eth1 10.77.1.2\n",
        "",
    )
    assert slackline("status", "--name", name) == (
        0,
        f"lab '{name}': 2 hosts with 2 NICs of 1 Gbit/s, kernel switch, persistent\n",
        "",
    )
    assert slackline("down", "--name", name) == (0, f"lab '{name}' is down\n", "")
    assert slackline("down", "--name", name) == (2, "", f"slackline: there is no lab '{name}'\n")


def test_a_program_runs_on_a_host_with_its_own_exit_code(slackline: Slackline, name: str) -> None:
    slackline("up", "--hosts", "2", "--name", name)
    look = "import os, socket, sys; print(socket.gethostbyname(socket.gethostname())); sys.exit(7)"
    with start("exec", "--name", name, "1", "--", sys.executable, "-c", look) as program:
        assert program.communicate(timeout=110) == ("10.77.0.2\n", "")
    assert program.returncode == 7
    code, _, err = slackline("exec", "--name", name, "2", "true")
    assert code == 2
    assert err == f"slackline: a host must be between 0 and 1 in the lab '{name}', not 2\n"


def test_a_fault_is_waited_for(slackline: Slackline, name: str) -> None:
    slackline("up", "--hosts", "2", "--switch", "user", "--name", name)
    assert slackline(
        "fault", "--name", name, "link 0-1 loss 1% for 50ms; nic 0.0 down for 1ms"
    ) == (
        0,
        "",
        "",
    )


def test_a_fault_is_taken_back_by_ctrl_c(slackline: Slackline, name: str) -> None:
    slackline("up", "--hosts", "2", "--name", name)
    waiting = start("fault", "--name", name, "nic 1.0 down")
    shown = "  fault: nic 1.0 down\n"
    until(lambda: shown in slackline("status", "--name", name)[1], "the fault is not shown")
    waiting.send_signal(signal.SIGINT)
    assert waiting.communicate(timeout=110)[1] == "slackline lab: the faults are taken back\n"
    assert waiting.returncode == 130
    until(lambda: "fault" not in slackline("status", "--name", name)[1], "the fault is still shown")


@pytest.mark.parametrize(("detach", "there"), [(False, 0), (True, 1)])
def test_who_leaves_before_the_answer_leaves_a_fault_only_if_it_is_detached(
    detach: bool, there: int
) -> None:
    with Lab(LabOptions(hosts=2)) as lab:
        ours, theirs = socket.socketpair()
        ours.sendall(json.dumps({"fault": "nic 1.0 down", "detach": detach}).encode() + b"\n")
        ours.close()
        _daemon._serve(lab, theirs, [])
        assert len(lab.plans()) == there


def test_a_detached_fault_stays(slackline: Slackline, name: str) -> None:
    slackline("up", "--hosts", "2", "--name", name)
    assert slackline("fault", "--name", name, "--detach", "nic 1.0 down")[0] == 0
    assert "  fault: nic 1.0 down\n" in slackline("status", "--name", name)[1]


def test_a_fault_that_was_left_out_is_an_error_or_a_line_of_the_status(
    slackline: Slackline, name: str
) -> None:
    slackline("up", "--hosts", "2", "--name", name)
    text = "nic 1.0 down from 1ms for 1ns"
    reason = f"the fault '{text}' is left out: the thread that starts faults was late by "
    code, _, err = slackline("fault", "--name", name, text)
    assert code == 2
    assert err.startswith(f"slackline: {reason}")
    assert slackline("fault", "--name", name, "--detach", text)[0] == 0
    until(lambda: f"  {reason}" in slackline("status", "--name", name)[1], "no reason is shown")


def test_a_rank_s_fault_hits_what_runs_on_its_host(slackline: Slackline, name: str) -> None:
    slackline("up", "--hosts", "2", "--name", name)
    say = "import time; print('up', flush=True); time.sleep(600)"
    with start("exec", "--name", name, "1", "--", sys.executable, "-c", say) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "up\n"
        assert slackline("fault", "--name", name, "rank 1 kill") == (0, "", "")
        assert victim.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fault", "nic 2.0 down"], "there is no host 2 for 'nic 2.0 down': there are 2"),
        (
            ["fault", "link 0-1 delay 1ms"],
            "the kernel switch cannot apply 'link 0-1 delay 1ms': it can only take NICs down and "
            "set their rates; choose the user-space switch (switch 'user')",
        ),
        (["up"], "the lab '{}' is up and belongs to process {}"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    slackline: Slackline, name: str, arguments: list[str], message: str
) -> None:
    slackline("up", "--hosts", "2", "--name", name)
    code, out, err = slackline(arguments[0], "--name", name, *arguments[1:])
    assert (code, out) == (2, "")
    expected = re.escape(f"slackline: {message}\n").replace(r"\{\}", r"\w+")
    assert re.fullmatch(expected, err)


def test_what_a_killed_daemon_left_is_cleaned(slackline: Slackline, name: str) -> None:
    slackline("up", "--hosts", "2", "--switch", "user", "--name", name)
    os.kill(find(name).pid, signal.SIGKILL)
    until(lambda: not Record.read(name).alive, "the lab goes on")  # type: ignore[union-attr]
    assert (
        f"lab '{name}': 2 hosts with 1 NIC of unlimited, user switch, of a dead process\n"
        in (slackline("status")[1])
    )
    assert slackline("down", "--name", name) == (0, f"lab '{name}' is down\n", "")
    assert left(name) == []


def test_all_are_taken_down_but_those_of_living_programs(
    slackline: Slackline, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ownership, "RUNTIME", tmp_path)  # labs of others are then out of reach
    subprocess.run(["ip", "netns", "add", f"slackline-{name}-0"], check=True)
    with Lab(LabOptions(hosts=1), name=f"{name}-mine") as mine:
        record = Record.read(mine.name)
        assert record is not None
        dead = replace(record, name=name, started=record.started + 1)
        (tmp_path / f"{name}.json").write_text(json.dumps(asdict(dead)))
        assert slackline("down", "--all") == (
            0,
            f"lab '{mine.name}' stays: it belongs to process {os.getpid()}\nlab '{name}' is down\n",
            "",
        )
        assert Path(f"/run/netns/slackline-{mine.name}-0").exists()


def test_the_commands_in_the_module_s_docstring_run_as_printed(
    slackline: Slackline, name: str
) -> None:
    """Check with another name of the lab, and a shorter fault."""
    printed = re.findall(r"^slackline lab (.+?)(?:  .*)?$", commands.__doc__ or "", re.MULTILINE)
    ran = []
    for line in printed:
        command, *rest = shlex.split(line.replace("for 5s", "for 100ms"))
        ran.append(command)
        if command == "exec":  # The program replaces the process of the command.
            program = start(command, "--name", name, *rest)
            said = program.communicate(timeout=60)
            assert program.returncode == 0, (line, said)
        else:
            code, out, error = slackline(command, "--name", name, *rest)
            assert (code, error) == (0, ""), (line, out, error)
    assert ran == ["up", "exec", "fault", "status", "down"]
