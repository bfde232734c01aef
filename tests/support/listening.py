"""The addresses at which processes of this machine listen, as /proc lists them."""

import ipaddress
import os
import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["listening"]

_LISTEN = "0A"


def listening(pids: Iterable[int]) -> set[tuple[str, int]]:
    """Return the addresses and ports at which the processes `pids` accept TCP connections.

    The processes must belong to this user and to this network namespace.
    """
    inodes = {inode for pid in pids for inode in _sockets(pid)}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == _LISTEN and words[9] in inodes:
                address, _, port = words[1].partition(":")
                found.add((_text(address), int(port, 16)))
    return found


def _sockets(pid: int) -> set[str]:
    """Return the inode numbers of the sockets that a process holds."""
    folder, found = Path(f"/proc/{pid}/fd"), set()
    for descriptor in os.listdir(folder):
        try:
            target = os.readlink(folder / descriptor)
        except FileNotFoundError:  # it was closed meanwhile
            continue
        if socket := re.fullmatch(r"socket:\[(\d+)\]", target):
            found.add(socket[1])
    return found


def _text(address: str) -> str:
    """Return the text of an address that is written as words of 32 bits in the host's order."""
    words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
    return str(ipaddress.ip_address(b"".join(words)))
