"""A watch on the connections of the rendezvous store, for paths that drop long packets in silence.

Where a hole swallows long packets, torch's TCPStore accepts connections, answers short questions,
and then blocks in a call without a limit. No error can come from there, so a thread looks at the
kernel's table of connections while a group opens:

    rank 1 ── set("descriptor", 700 bytes) ──x        its TCP sends the packet again and again
    rank 1: check(...) waits for ever                 the thread logs what happened, after 5 s

The table has every connection of the network namespace. So the host of rank 0 also names answers
of the store that do not arrive, even if the store lives in torchrun's process.
"""

from __future__ import annotations

import ipaddress
import logging
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Stuck", "stuck_connections", "watch"]

_log = logging.getLogger("slackline.nic")

_TIMEOUTS = 3
"""The timeouts in succession after which data count as lost: TCP doubles its wait each time, and
the third ends after more than a second."""
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED = "01"


@dataclass(frozen=True, slots=True)
class Stuck:
    """A connection whose data are sent again and again, without an acknowledgement."""

    source: str
    """The address of this end, with the port: "10.0.0.2:40312"."""
    target: str
    unconfirmed_bytes: int

    def __str__(self) -> str:
        return (
            f"the connection of the rendezvous store from {self.source} to {self.target} was "
            f"opened, and then {self.unconfirmed_bytes} bytes were sent again and again without "
            f"an acknowledgement: the path between these addresses drops long packets in silence, "
            "or no longer passes any. If `ping` passes, lower the MTU of the interfaces of both "
            "addresses (ip link set dev NAME mtu 1280), or let the routers and firewalls between "
            "them pass ICMP messages of the type 'fragmentation needed' or 'packet too big'"
        )


def stuck_connections(table: str, port: int) -> list[Stuck]:
    """Return the open connections with `port` at either end whose data do not arrive.

    `table` is the text of /proc/net/tcp or /proc/net/tcp6.
    """
    found = []
    for line in table.splitlines()[1:]:
        _, source, target, state, queues, _, retransmits, *_ = line.split()
        ports = int(source.rpartition(":")[2], 16), int(target.rpartition(":")[2], 16)
        waiting = int(queues.partition(":")[0], 16)
        if state != _ESTABLISHED or port not in ports or not waiting:
            continue
        if int(retransmits, 16) >= _TIMEOUTS:
            found.append(Stuck(_address(source), _address(target), waiting))
    return found


def _address(text: str) -> str:
    """Return an address of the kernel's table, whose words have the host's byte order."""
    words, _, port = text.partition(":")
    packed = b"".join(
        int(words[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(words), 8)
    )
    address = ipaddress.ip_address(packed)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return f"[{address}]:{int(port, 16)}" if address.version == 6 else f"{address}:{int(port, 16)}"


def watch(port: int, ended: threading.Event, pause_s: float, told: dict[str, Stuck]) -> None:
    """Look at the connections of the store with `port` until `ended` is set.

    Logs each connection whose data do not arrive, and puts it into `told` by its two addresses.
    """
    while True:
        for table in _TABLES:
            for stuck in stuck_connections(_text(table), port):
                ends = f"{stuck.source}>{stuck.target}"
                if ends not in told:
                    told[ends] = stuck
                    _log.warning("%s", stuck)
        if ended.wait(pause_s):
            return


def _text(table: Path) -> str:
    """Return the kernel's table; "" where it cannot be read."""
    try:
        return table.read_text()
    except OSError:
        return ""
