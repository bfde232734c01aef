"""Tests of a lab on the kernel's bridge: hosts reach each other, and nothing is left behind."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slackline._process_start import started
from slackline.errors import UsageError
from slackline.lab import Lab, LabOptions

Start = Callable[..., subprocess.Popen[str]]

RECEIVER = """
import socket
server = socket.create_server(("0.0.0.0", 5000))
print("listening", flush=True)
peer, (source, _) = server.accept()
received = bytearray()
while piece := peer.recv(1 << 16):
    received += piece
print(source, len(received), sum(received))
"""
SENDER = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as peer:
    peer.sendall(bytes(range(256)) * 4096)
"""
OWNER = """
import signal, subprocess, sys
from slackline.lab import Lab, LabOptions
with Lab(LabOptions(hosts=2), name=sys.argv[1]) as lab:
    child = subprocess.Popen(lab.command(1, ["sleep", "600"]))
    print(child.pid, flush=True)
    signal.pause()
"""


def namespaces(name: str) -> list[str]:
    return sorted(path.name for path in Path("/run/netns").glob(f"slackline-{name}-*"))


def alive(pid: int) -> bool:
    return started(pid) is not None


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"t{os.getpid()}"


def test_hosts_reach_each_other_on_every_nic(name: str, start: Start) -> None:
    with Lab(LabOptions(hosts=3, nics=2, rate=10**9), name=name) as lab:
        assert lab.interfaces(2) == ("eth0", "eth1")
        for nic, address in enumerate(("10.77.0.3", "10.77.1.3")):
            assert lab.address(2, nic) == address
            receiver = start(lab, 2, RECEIVER)
            assert receiver.stdout is not None
            assert receiver.stdout.readline() == "listening\n"
            assert start(lab, 0, SENDER, address).wait(60) == 0
            source = lab.address(0, nic)
            assert receiver.stdout.readline() == f"{source} 1048576 133693440\n"
    assert namespaces(name) == []


def test_only_what_programs_send_is_on_the_wire(name: str) -> None:
    with Lab(LabOptions(hosts=3), name=name) as lab:
        argv = lab.command(1, ["cat", "/proc/net/dev"])
        counted = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
        line = re.search(r"eth0: (.*)", counted)
        assert line is not None
        assert set(line[1].split()) == {"0"}


def test_a_program_in_the_lab_is_its_own_process_on_its_own_loopback(
    name: str, start: Start
) -> None:
    code = """
import os, socket
with socket.create_server(("localhost", 0)) as server:
    socket.create_connection(server.getsockname()).close()
print(os.getpid(), [name for _, name in socket.if_nameindex()], flush=True)
input()
"""
    with Lab(LabOptions(hosts=2), name=name) as lab:
        process = start(lab, 1, code)
        assert process.stdout is not None
        assert process.stdout.readline() == f"{process.pid} ['lo', 'eth0']\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


def test_two_labs_stand_side_by_side(name: str, start: Start) -> None:
    with (
        Lab(LabOptions(hosts=2), name=f"{name}a") as first,
        Lab(LabOptions(hosts=2), name=f"{name}b") as second,
    ):
        receivers = [start(lab, 1, RECEIVER) for lab in (first, second)]
        for lab, receiver in zip((first, second), receivers, strict=True):
            assert receiver.stdout is not None
            assert receiver.stdout.readline() == "listening\n"
            assert start(lab, 0, SENDER, "10.77.0.2").wait(60) == 0
            assert receiver.stdout.readline() == "10.77.0.1 1048576 133693440\n"


def test_a_name_belongs_to_one_lab(name: str) -> None:
    with Lab(LabOptions(hosts=2), name=name):
        message = rf"^the lab '{name}' is up and belongs to process {os.getpid()}$"
        with pytest.raises(UsageError, match=message), Lab(LabOptions(), name=name):
            pass
        assert len(namespaces(name)) == 3
    assert namespaces(name) == []


def test_a_namespace_of_somebody_else_is_left_alone(name: str) -> None:
    foreign = f"slackline-{name}-1"
    subprocess.run(["ip", "netns", "add", foreign], check=True)
    try:
        message = rf"^the network namespace '{foreign}' exists and no lab owns it: .*$"
        with pytest.raises(UsageError, match=message), Lab(LabOptions(hosts=2), name=name):
            pass
        assert namespaces(name) == [foreign]
    finally:
        subprocess.run(["ip", "netns", "delete", foreign], check=True)


def test_an_exception_takes_the_lab_down_and_ends_what_runs_in_it(name: str) -> None:
    process = None

    def fail() -> None:
        nonlocal process
        with Lab(LabOptions(hosts=2), name=name) as lab:
            process = subprocess.Popen(lab.command(0, ["sleep", "600"]))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert process is not None
    assert process.wait(60) == -signal.SIGKILL
    assert namespaces(name) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_takes_the_lab_down(name: str, number: signal.Signals) -> None:
    command = [sys.executable, "-c", OWNER, name]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        assert len(namespaces(name)) == 3
        owner.send_signal(number)
        assert owner.wait(60) in (-number, 128 + number, 1)
    assert namespaces(name) == []
    assert not alive(child)


def test_the_next_owner_of_a_name_cleans_what_a_killed_one_left(name: str) -> None:
    command = [sys.executable, "-c", OWNER, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        owner.kill()
    assert len(namespaces(name)) == 3
    assert alive(child)
    with Lab(LabOptions(hosts=1), name=name):
        assert namespaces(name) == [f"slackline-{name}-0", f"slackline-{name}-fabric"]
        assert not alive(child)
    assert namespaces(name) == []
