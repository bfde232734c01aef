"""Hosts as network namespaces, with NICs, addresses and routes of any kind.

A Lab's hosts have one IPv4 subnet for each NIC. Hosts of a Wiring are cabled by each test.
"""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from slackline.lab._commands import Batch, add_namespaces, delete_namespace
from slackline.lab._system import SETTINGS, execute

RANK = Path(__file__).with_name("network_rank.py")
STORE_RANK = Path(__file__).with_name("store_rank.py")


def plain_environment() -> dict[str, str]:
    """Return this process's environment without settings of slackline, gloo and torchrun."""
    settings = ("SLACKLINE_", "GLOO_", "MASTER_", "TORCHELASTIC_")
    return {k: v for k, v in os.environ.items() if not k.startswith(settings)}


class Wiring:
    """Hosts and a namespace of switches and routers between them; a context manager."""

    def __init__(self, hosts: int, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        self._name = f"slackline-net-{os.getpid()}-{secrets.token_hex(2)}"
        self._stack = ExitStack()
        self._files: list[Path] = []
        self._ports = 0
        self.ranks: list[Rank] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for name in (self.fabric, *map(self.host, range(self.hosts))):
                execute([add_namespaces([name])])
                stack.callback(execute, [delete_namespace(name)])
                self.ip(name, "link set lo up")
            stack.callback(self._remove_files)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def fabric(self) -> str:
        """Return the name of the namespace of the switches and routers."""
        return f"{self._name}-fabric"

    def host(self, host: int) -> str:
        """Return the name of a host's namespace."""
        return f"{self._name}-{host}"

    def command(self, host: int, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs `argv` on a host."""
        return ["ip", "netns", "exec", self.host(host), *argv]

    def ip(self, namespace: str, *lines: str) -> None:
        """Run lines of `ip -batch` in a namespace."""
        execute([Batch("ip", namespace, lines)])

    def set(self, namespace: str, *settings: str) -> None:
        """Set kernel parameters ("net.ipv4.ip_forward=1") in a namespace."""
        command = ["ip", "netns", "exec", namespace, "sysctl", "-q", "-w", *settings]
        subprocess.run(command, check=True, capture_output=True, timeout=30)

    def switch(self, name: str, *, mtu: int = 1500) -> None:
        """Add a switch, which floods and learns as an Ethernet switch does."""
        self.ip(
            self.fabric,
            f"link add {name} type bridge mcast_snooping 0",
            f"link set {name} addrgenmode none mtu {mtu} up",
        )

    def plug(
        self, host: int, nic: str, switch: str, *addresses: str, mtu: int = 1500, up: bool = True
    ) -> str:
        """Add a NIC with addresses to a host, cabled to a switch; return the name of its port."""
        port = f"p{self._ports}"
        self._ports += 1
        self.ip(
            self.fabric,
            f"link add {port} mtu {mtu} type veth peer name {nic} mtu {mtu} "
            f"netns {self.host(host)}",
            f"link set {port} addrgenmode none master {switch} up",
        )
        self.ip(
            self.host(host),
            f"link set {nic} addrgenmode none",
            *([f"link set {nic} up"] if up else []),
            *(_add(address, nic) for address in addresses),
        )
        return port

    def route(self, host: int, nic: str, address: str, gateway: str, *, metric: int) -> None:
        """Add a NIC whose cable ends at a router with the address `gateway` ("10.0.0.254/24")."""
        port = f"p{self._ports}"
        self._ports += 1
        self.ip(
            self.fabric,
            f"link add {port} type veth peer name {nic} netns {self.host(host)}",
            f"link set {port} addrgenmode none up",
            _add(gateway, port),
        )
        self.ip(
            self.host(host),
            f"link set {nic} addrgenmode none",
            f"link set {nic} up",
            _add(address, nic),
            f"route add default via {gateway.partition('/')[0]} dev {nic} metric {metric}",
        )

    def write_hosts(self, host: int, text: str) -> None:
        """Give a host an /etc/hosts of its own."""
        path = SETTINGS / self.host(host) / "hosts"
        path.parent.mkdir(parents=True)
        self._files.append(path)
        path.write_text(text)

    def has_hosts_file(self, host: int) -> bool:
        """Return whether a host has an /etc/hosts of its own."""
        return (SETTINGS / self.host(host) / "hosts").exists()

    def start(self, *arguments: str) -> None:
        """Start a rank on each host and wait until their group is open."""
        self.ranks = [
            self._stack.enter_context(
                Rank(self.host(number), number, self.hosts, self.folder, arguments)
            )
            for number in range(self.hosts)
        ]
        for rank in self.ranks:
            rank.answer()

    def work(self) -> list[dict[str, Any]]:
        """Make all ranks reduce tensors and check the sums; return the answer of each rank."""
        for rank in self.ranks:
            rank.ask("sum")
        return [rank.answer() for rank in self.ranks]

    def work_until_rails(self, wanted: Sequence[str]) -> list[dict[str, Any]]:
        """Repeat the work until rank 0 has these rails; fail after half a minute."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            told = self.work()
            if told[0]["rails"] == list(wanted):
                return told
        raise AssertionError(f"rank 0 has the rails {told[0]['rails']}, not {wanted}")

    def _remove_files(self) -> None:
        for path in self._files:
            path.unlink()
            path.parent.rmdir()


class Rank:
    """A rank as a process on a host; leaving the context ends it."""

    def __init__(
        self, namespace: str, rank: int, size: int, folder: Path, arguments: Sequence[str]
    ) -> None:
        program = [sys.executable, str(RANK), str(rank), str(size), str(folder), *arguments]
        self._rank = rank
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=plain_environment(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def ask(self, what: str) -> None:
        """Send the rank one line."""
        assert self._process.stdin is not None
        print(what, file=self._process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        """Return the rank's next answer; fail if the rank has ended or met an error."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"rank {self._rank} ended with {self._process.wait(60)}"
        told: dict[str, Any] = json.loads(line)
        assert "error" not in told, f"rank {self._rank}: {told['error']}"
        return told


def _add(address: str, nic: str) -> str:
    """Return the line that gives a NIC an address without duplicate address detection."""
    return f"address add {address} dev {nic}{' nodad' if ':' in address else ''}"
