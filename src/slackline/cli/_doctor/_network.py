"""Checks of interfaces, socket buffers, UDP segmentation offload, and the host's own name."""

import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slackline.cli._doctor._finding import Finding, Level
from slackline.cli._doctor._system import read_text
from slackline.cli._job._loopback import ADDRESSES, usable
from slackline.env import Environment
from slackline.units import show_bytes, show_rate, show_time

__all__ = [
    "Interface",
    "buffers",
    "chosen",
    "interface",
    "interfaces",
    "loopback",
    "network_findings",
    "own_name",
    "segmentation",
]

_SOL_UDP = 17
_UDP_SEGMENT = 103
_UDP_GRO = 104
_WANTED_BUFFER = 4 << 20
"""The socket buffer, in bytes, that a UDP rail (a path to a peer over UDP) wants.

The buffer must hold the packets of a fast NIC while the engine's thread waits for a core.
"""

_MANY_ERRORS = 1e-5
_FAST = 10**10
_LARGE_FRAMES = 9000
_SLOW_LOOKUP_NS = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Interface:
    """A network interface as the kernel describes it."""

    name: str
    up: bool
    address: str | None
    """The addresses of the interface, IPv4 before IPv6, separated by commas; None without any."""
    bits_per_second: int | None
    """The speed of the link; None for an interface without one, such as a virtual interface."""
    mtu: int
    packets: int
    errors: int
    """The packets that the device damaged or failed to deliver, sent and received together."""
    dropped: int
    """The packets that the kernel dropped for lack of buffers, sent and received together."""


def network_findings() -> list[Finding]:
    """Return the result of every check in this file."""
    found = interfaces()
    host = socket.gethostname()
    before_ns = time.monotonic_ns()
    addresses = _lookup(host)
    lookup_ns = time.monotonic_ns() - before_ns
    return [
        *(interface(each) for each in found if each.name != "lo" and (each.up or each.address)),
        chosen(",".join(Environment.read().interface or ()), found),
        loopback({address: usable(address) for address in ADDRESSES}),
        own_name(host, addresses, lookup_ns, outside=_outside(found)),
        *(_buffer(direction) for direction in ("rmem", "wmem")),
        segmentation(_accepts(_UDP_SEGMENT, 1400), _accepts(_UDP_GRO, 1)),
    ]


def interfaces(root: Path = Path("/sys/class/net")) -> list[Interface]:
    """Return every interface of this network namespace, sorted by name."""
    return [_describe(path) for path in sorted(root.iterdir()) if (path / "mtu").exists()]


def interface(found: Interface) -> Finding:
    """Check one interface: its state, its error and drop counts, its MTU."""
    speed = show_rate(found.bits_per_second) if found.bits_per_second else "no speed told"
    state = "up" if found.up else "down"
    value = f"{state}, {speed}, MTU {found.mtu}, {found.address or 'no address'}"
    name = f"NIC {found.name}"
    if not found.up:
        return Finding(
            name=name,
            value=value,
            level=Level.MEND,
            advice=f"{found.name} has an address and is down: plug it in and bring it up",
            command=f"ip link set dev {found.name} up",
        )
    if found.errors > max(10, _MANY_ERRORS * found.packets):
        return Finding(
            name=name,
            value=value,
            level=Level.MEND,
            advice=f"{found.name} counts {found.errors} errors in {found.packets} packets: mend "
            "the cable, the transceiver or the port of the switch",
            command=f"ethtool -S {found.name}",
        )
    if found.dropped > max(10, _MANY_ERRORS * found.packets):
        return Finding(
            name=name,
            value=f"{value}, {found.dropped} dropped",
            level=Level.NOTE,
            advice=f"{found.name} dropped {found.dropped} of {found.packets} packets: longer "
            "receive rings may help where they overflow",
            command=f"ethtool -g {found.name}",
        )
    if (found.bits_per_second or 0) >= _FAST and found.mtu < _LARGE_FRAMES:
        return Finding(
            name=name,
            value=value,
            level=Level.NOTE,
            advice=f"{found.name} is fast and sends packets of {found.mtu} bytes: larger ones cost "
            "less processor time where every switch on the way takes them",
            command=f"ip link set dev {found.name} mtu {_LARGE_FRAMES}",
        )
    return Finding(name=name, value=value)


def chosen(asked: str, found: Sequence[Interface]) -> Finding:
    """Check that the interfaces in SLACKLINE_INTERFACE are up and have an address.

    `asked` is the variable's value, names joined by commas. If it is empty, all usable interfaces
    are reported.
    """
    usable = [each.name for each in found if each.up and each.address and each.name != "lo"]
    names = asked.split(",") if asked else usable
    missing = [name for name in names if name not in (*usable, "lo")]
    if missing:
        return Finding(
            name="interfaces",
            value=f"SLACKLINE_INTERFACE={asked}",
            level=Level.MEND,
            advice=f"{missing[0]!r} is no interface that is up and has an address; "
            f"there are {', '.join(usable) or 'none'}",
            command=f"export SLACKLINE_INTERFACE={','.join(usable) or 'lo'}",
        )
    if not names:
        return Finding(
            name="interfaces",
            value="loopback alone",
            level=Level.NOTE,
            advice="no interface but the loopback is up: only ranks of this machine can meet",
        )
    return Finding(name="interfaces", value=", ".join(names))


def loopback(reasons: Mapping[str, str]) -> Finding:
    """Check that the ranks of this machine can meet at a loopback address.

    `reasons` says for each address why no connection to it works, with an empty text if one works.
    """
    name = "loopback"
    if works := [address for address, reason in reasons.items() if not reason]:
        return Finding(name=name, value=", ".join(works))
    why = "; ".join(f"{address}: {reason}" for address, reason in reasons.items())
    return Finding(
        name=name,
        value="does not work",
        level=Level.MEND,
        advice=f"no rank of this machine can reach another one over the loopback interface ({why}):"
        " bring the interface up",
        command="ip link set dev lo up",
    )


def own_name(host: str, addresses: Sequence[str], lookup_ns: int, *, outside: bool) -> Finding:
    """Check that the host's own name resolves quickly, and to an address other hosts can reach.

    torchrun tells this name to the other hosts. `outside` is true if the host has an address that
    others can reach.
    """
    name = "own name"
    if not addresses:
        return Finding(
            name=name,
            value=f"{host} leads nowhere",
            level=Level.MEND,
            advice=f"the name {host!r} has no address: torchrun, and jobs of several hosts that "
            "name this one, wait for it without end (slackline run on one host needs no name); "
            "add it to the table of hosts",
            command=f'echo "127.0.1.1 {host}" >> /etc/hosts',
        )
    value = f"{host} is {', '.join(addresses)}"
    if lookup_ns > _SLOW_LOOKUP_NS:
        return Finding(
            name=name,
            value=f"{value}, after {show_time(lookup_ns)}",
            level=Level.MEND,
            advice=f"looking up {host!r} takes {show_time(lookup_ns)}: a name server does not "
            "answer; add the name to the table of hosts",
            command=f'echo "{addresses[0]} {host}" >> /etc/hosts',
        )
    if outside and all(address.startswith("127.") or address == "::1" for address in addresses):
        return Finding(
            name=name,
            value=value,
            level=Level.NOTE,
            advice=f"{host!r} leads back to this host: give torchrun --rdzv-endpoint or "
            "--master-addr an address that the other hosts can reach",
        )
    return Finding(name=name, value=value)


def buffers(direction: str, limit: int) -> Finding:
    """Check that the kernel allows socket buffers large enough for UDP rails to lose no packets.

    `direction` is "rmem" or "wmem", and `limit` the kernel's maximum in bytes.
    """
    name = f"socket buffer ({direction})"
    value = f"up to {show_bytes(limit)}"
    if limit >= _WANTED_BUFFER:
        return Finding(name=name, value=value)
    return Finding(
        name=name,
        value=value,
        level=Level.NOTE,
        advice=f"UDP rails lose packets with buffers below {show_bytes(_WANTED_BUFFER)}; TCP "
        "does not mind",
        command=f"sysctl -w net.core.{direction}_max={_WANTED_BUFFER}",
    )


def segmentation(sends: bool, receives: bool) -> Finding:
    """Check that the kernel segments and coalesces UDP datagrams (GSO and GRO).

    With both, one system call moves up to 64 KiB instead of one packet.
    """
    name = "UDP segmentation"
    if sends and receives:
        return Finding(name=name, value="GSO and GRO")
    missing = "GSO" if receives else "GRO" if sends else "GSO and GRO"
    return Finding(
        name=name,
        value=f"without {missing}",
        level=Level.NOTE,
        advice=f"the kernel has no UDP {missing}: a UDP rail needs a call for every packet; "
        "Linux 5.0 has both",
    )


def _describe(path: Path) -> Interface:
    def number(name: str) -> int:
        text = read_text(str(path / name))
        return int(text) if text.lstrip("-").isdigit() else 0

    counts = {
        name: number(f"statistics/rx_{name}") + number(f"statistics/tx_{name}")
        for name in ("packets", "errors", "dropped")
    }
    megabits = number("speed")
    return Interface(
        name=path.name,
        up=bool(int(read_text(str(path / "flags")) or "0", 16) & 1) and number("carrier") == 1,
        address=_address(path.name),
        bits_per_second=megabits * 10**6 if megabits > 0 else None,
        mtu=number("mtu"),
        **counts,
    )


def _address(name: str) -> str | None:
    try:
        from slackline.nic.host import devices
    except ImportError:
        return None  # The check of the compiled extension reports this failure.
    found = [a.text for device in devices() if device.name == name for a in device.addresses]
    return ", ".join(found) or None


def _outside(found: Sequence[Interface]) -> bool:
    return any(each.up and each.address and each.name != "lo" for each in found)


def _lookup(host: str) -> list[str]:
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(answer[4][0]) for answer in answers})


def _buffer(direction: str) -> Finding:
    text = read_text(f"/proc/sys/net/core/{direction}_max")
    if text:
        return buffers(direction, int(text))
    return Finding(name=f"socket buffer ({direction})", value="not told in this namespace")


def _accepts(option: int, value: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.setsockopt(_SOL_UDP, option, value)
        except OSError:
            return False
    return True
