"""Tests of the rules of `slackline doctor` on invented facts, and of the command on this
machine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slackline.cli import main
from slackline.cli._doctor import _lab, _network, _paths, _system
from slackline.cli._doctor._finding import Finding, Level
from slackline.cli._doctor._network import Interface
from slackline.nic.connect import _addresses

_NICS = [
    _addresses.Interface(name="eth0", address="10.0.0.1", prefix=24),
    _addresses.Interface(name="eth1", address="10.0.0.3", prefix=24),
    _addresses.Interface(name="eth1", address="fd00::3", prefix=64),
    _addresses.Interface(name="wg0", address="10.9.0.3", prefix=24, overlay=True),
    _addresses.Interface(name="lo", address="127.0.0.1", prefix=8),
]
_MOUNTS = os.geteuid() == 0 and (
    subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode == 0
)
needs_mounts = pytest.mark.skipif(not _MOUNTS, reason="no mount namespace may be made")
_NODES = {0: {0, 1, 2, 3}, 1: {4, 5, 6, 7}}


def _interface(**changes: object) -> Interface:
    facts: dict[str, object] = {
        "name": "eth0",
        "up": True,
        "address": "10.0.0.1",
        "bits_per_second": 10**9,
        "mtu": 1500,
        "packets": 10**6,
        "errors": 0,
        "dropped": 0,
    }
    return Interface(**(facts | changes))  # type: ignore[arg-type]


def _permissions(**changes: Any) -> Finding:
    facts: dict[str, Any] = {"root": True, "missing_tools": [], "lacking": [], "failed": ""}
    return _lab.permissions(**(facts | {"tun": True, "container": ""} | changes))


@pytest.mark.parametrize(
    "finding",
    [
        _system.kernel("Linux", "6.1.0"),
        _system.torch_version("2.11.0+cpu"),
        _system.cores(4, 4),
        _system.arena(None, "0", 4),
        _system.arena(1 << 50, "0", 4),
        _system.shared_files(8 << 30),
        _system.descriptors(1024, 8),
        _system.descriptors(-1, 8),
        _system.clock_source("tsc"),
        _system.crc32c("x86_64", "flags : fpu sse4_2 avx2"),
        _system.crc32c("aarch64", "Features : fp asimd crc32"),
        _network.interface(_interface()),
        _system.memory(8 << 30, None, 4),
        _system.memory(8 << 30, 2 << 30, 4),
        _network.chosen("", [_interface()]),
        _network.chosen("eth0", [_interface()]),
        _network.loopback({"127.0.0.1": "", "::1": "Cannot assign requested address"}),
        _network.own_name("box", ["10.0.0.1"], 1000, outside=True),
        _network.buffers("rmem", 4 << 20),
        _network.segmentation(True, True),
        _paths.used(_NICS),
        *_paths.one_subnet(_NICS[:1], "0"),
        *_paths.numa({"eth0": 1}, {4, 5}, _NODES),
        _permissions(),
        _lab.kernel_parts({"tbf": True, "netem": False}),
    ],
    ids=lambda finding: finding.name,
)
def test_what_is_well_asks_for_nothing(finding: Finding) -> None:
    assert (finding.level, finding.advice, finding.command) == (Level.WELL, "", "")


@pytest.mark.parametrize(
    ("finding", "advice", "command"),
    [
        (
            _system.kernel("Darwin", "24.0"),
            "the engine needs Linux: run it there, or in a Linux container",
            "",
        ),
        (
            _system.torch_version("2.9.1"),
            "slackline needs torch 2.11 or later",
            "pip install 'torch>=2.11'",
        ),
        (
            _system.arena(700 << 20, "0", 4),
            "torch and the registered memory of all ranks of this machine do not fit into the "
            "limit: ranks use TCP in place of shared memory, or do not start; lift the limit",
            "ulimit -v unlimited",
        ),
        (
            _system.arena(None, "2", 4),
            "with vm.overcommit_memory=2 the kernel refuses the 64 GiB that an engine reserves: "
            "set it to 0, or SLACKLINE_ARENA to what is needed",
            "sysctl -w vm.overcommit_memory=0",
        ),
        (
            _system.descriptors(256, 64),
            "a rank of 64 may need 384 open descriptors",
            "ulimit -n 4096",
        ),
        (
            _network.interface(_interface(up=False)),
            "eth0 has an address and is down: plug it in and bring it up",
            "ip link set dev eth0 up",
        ),
        (
            _network.interface(_interface(errors=500)),
            "eth0 counts 500 errors in 1000000 packets: mend the cable, the transceiver or the "
            "port of the switch",
            "ethtool -S eth0",
        ),
        (
            _network.chosen("eth1", [_interface(), _interface(name="eth2")]),
            "'eth1' is no interface that is up and has an address; there are eth0, eth2",
            "export SLACKLINE_INTERFACE=eth0,eth2",
        ),
        (
            _network.own_name("box", [], 1000, outside=True),
            "the name 'box' has no address: torchrun, and jobs of several hosts that name this one,"
            " wait for it without end (slackline run on one host needs no name); add it to the "
            "table of hosts",
            'echo "127.0.1.1 box" >> /etc/hosts',
        ),
        (
            _network.loopback({"127.0.0.1": "Network is unreachable", "::1": "timed out"}),
            "no rank of this machine can reach another one over the loopback interface (127.0.0.1: "
            "Network is unreachable; ::1: timed out): bring the interface up",
            "ip link set dev lo up",
        ),
        (
            _network.own_name("box", ["10.0.0.1"], 5_000_000_000, outside=True),
            "looking up 'box' takes 5 s: a name server does not answer; add the name to the "
            "table of hosts",
            'echo "10.0.0.1 box" >> /etc/hosts',
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Finding) else "",
)
def test_what_is_to_be_mended_says_how(finding: Finding, advice: str, command: str) -> None:
    assert (finding.level, finding.advice, finding.command) == (Level.MEND, advice, command)


@pytest.mark.parametrize(
    "finding",
    [
        _system.cores(2, 4),
        _system.clock_source("hpet"),
        _system.crc32c("x86_64", "flags : fpu sse2"),
        _network.interface(_interface(dropped=500)),
        _network.interface(_interface(bits_per_second=10**11)),
        _network.chosen("", []),
        _network.own_name("box", ["127.0.0.1"], 1000, outside=True),
        _network.buffers("wmem", 212992),
        _network.segmentation(True, False),
        *_paths.one_subnet(_NICS, "0"),
        *_paths.numa({"eth0": 1}, {0, 1}, _NODES),
        *_paths.numa({"eth0": 0, "eth1": 1}, {0, 4}, _NODES),
        _system.memory(8 << 30, 512 << 20, 4),
        _system.arena(8 << 30, "0", 4),
        _system.shared_files(64 << 20),
        _system.shared_files(None),
        _permissions(root=False),
        _permissions(missing_tools=["tc"]),
        _permissions(lacking=["CAP_NET_ADMIN"]),
        _permissions(failed="the lab cannot be built here"),
        _permissions(tun=False),
        _lab.kernel_parts({"tbf": False, "netem": True}),
    ],
    ids=lambda finding: finding.name,
)
def test_what_merely_costs_is_a_note_in_one_sentence(finding: Finding) -> None:
    assert finding.level is Level.NOTE
    assert finding.advice
    assert "\n" not in finding.advice


def test_a_limited_address_space_is_told_by_the_registered_memory_that_ranks_will_have() -> None:
    finding = _system.arena(8 << 30, "0", 4)
    assert (finding.value, finding.command) == ("limited to 8 GiB", "ulimit -v unlimited")
    assert finding.advice == (
        "each of 4 ranks gets about 896 MiB of registered memory in place of 64 GiB: lift the "
        "limit if the job needs more"
    )


@needs_mounts
def test_a_small_dev_shm_is_a_note_that_says_how_to_enlarge_it() -> None:
    asked = (
        "from slackline.cli._doctor._system import system_findings; "
        "print([each for each in system_findings(2) if each.name == '/dev/shm'][0])"
    )
    small = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
    found = subprocess.run(
        ["unshare", "--mount", "sh", "-c", small, "sh", sys.executable, "-c", asked],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "value='64 MiB', level=<Level.NOTE" in found.stdout
    assert "--shm-size=1g" in found.stdout


def test_interfaces_are_read_as_the_kernel_shows_them(tmp_path: Path) -> None:
    nic = tmp_path / "nosuchnic0"
    (nic / "statistics").mkdir(parents=True)
    facts = {"flags": "0x1003", "carrier": "1", "mtu": "9000", "speed": "25000"}
    facts |= {"statistics/rx_packets": "70", "statistics/tx_packets": "30"}
    facts |= {"statistics/rx_errors": "1", "statistics/tx_errors": "2"}
    facts |= {"statistics/rx_dropped": "0", "statistics/tx_dropped": "4"}
    for name, text in facts.items():
        (nic / name).write_text(f"{text}\n")
    assert _network.interfaces(tmp_path) == [
        _interface(
            name="nosuchnic0",
            address=None,
            bits_per_second=25 * 10**9,
            mtu=9000,
            packets=100,
            errors=3,
            dropped=4,
        )
    ]


def test_the_addresses_that_ranks_publish_are_listed_by_nic() -> None:
    assert _paths.used(_NICS).value == (
        "eth0: 10.0.0.1/24; eth1: 10.0.0.3/24, fd00::3/64; wg0 (a tunnel): 10.9.0.3/24"
    )
    assert _paths.used(_NICS[-1:]).value == "loopback alone"


def test_a_nic_on_another_numa_node_is_named_with_the_command() -> None:
    (finding,) = _paths.numa({"eth0": 1, "eth1": None}, {0, 1}, _NODES)
    assert finding.value == "this process on 0; eth0 on 1"
    assert finding.command == "numactl --cpunodebind=1 --membind=1 COMMAND"
    assert _paths.numa({"eth0": 0}, {0}, {0: {0, 1}}) == []


def test_the_machine_is_checked_without_importing_torch() -> None:
    program = (
        "import sys; from slackline.cli import main; code = main(['doctor', '--json']); "
        "print('torch' in sys.modules, code in (0, 1), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=110
    )
    assert done.stderr == "False True\n"
    found = json.loads(done.stdout)
    names = [finding["name"] for finding in found["findings"]["this machine"]]
    assert names[:4] == ["kernel", "compiled engine", "torch", "cores"]
    assert "own name" in names
    assert found["transfers"] == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "0"], "ranks must be between 1 and 64, not 0"),
        (["--ranks", "2", "--rails", "tpc"], "a rail must be one of "),
        (["--seconds", "1ms"], "seconds must be at least 100ms, not 1ms"),
        (["--seconds", "4"], "a duration must be a number and one of "),
        (["--ranks", "2", "--cluster"], "--cluster and --ranks exclude each other"),
        (["--cluster"], "--cluster is for ranks that torchrun starts; --ranks starts ranks itself"),
    ],
)
def test_a_mistake_in_the_call_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["doctor", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"slackline: {message}")
    assert captured.out == ""
