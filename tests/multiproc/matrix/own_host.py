"""The fault that a host drops, for good, the packets of TCP connections that it has at the moment.

A stateful firewall that has forgotten its flows does so. The host's kernel does not count such
packets as sent, and the other end hears nothing. New connections work.
"""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from slackline.lab import Lab

__all__ = ["own_host_drops"]

_TABLE = "inet own_host"


@contextmanager
def own_host_drops(lab: Lab, host: int, subnet: str = "10.77.") -> Iterator[None]:
    """Drop what a host sends on its present TCP connections from addresses that begin as `subnet`.

    Fails unless packets were dropped.
    """
    rules = "".join(
        f"ip saddr {own[0]} ip daddr {peer[0]} tcp sport {own[1]} tcp dport {peer[1]} "
        "counter drop\n"
        for own, peer in _connections(lab, host)
        if own[0].startswith(subnet)
    )
    assert rules, f"host {host} has no connection from {subnet}"
    chain = f"chain out {{\ntype filter hook output priority 0;\n{rules}}}\n"
    _on(lab, host, "nft", "-f", "-", said=f"table {_TABLE} {{\n{chain}}}\n")
    try:
        yield
        table = _on(lab, host, "nft", "list", "table", *_TABLE.split())
        dropped = sum(map(int, re.findall(r"counter packets (\d+)", table)))
        assert dropped > 0, f"the fault was not there: {table}"
    finally:
        _on(lab, host, "nft", "delete", "table", *_TABLE.split())


def _connections(lab: Lab, host: int) -> list[list[tuple[str, str]]]:
    """Return both ends of each TCP connection of a host, its own end first."""
    told = _on(lab, host, "ss", "-tnH", "state", "established")
    found = []
    for line in told.splitlines():
        own, peer = (end.rpartition(":") for end in line.split()[2:4])
        found.append([(_bare(own[0]), own[2]), (_bare(peer[0]), peer[2])])
    return found


def _bare(address: str) -> str:
    """Return an address of the tool `ss` without the device's name and brackets."""
    return address.strip("[]").partition("%")[0].removeprefix("::ffff:")


def _on(lab: Lab, host: int, *command: str, said: str | None = None) -> str:
    """Run a command on a host of the lab and return its output."""
    return subprocess.run(
        lab.command(host, command), check=True, capture_output=True, text=True, input=said
    ).stdout
