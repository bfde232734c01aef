"""The `ip`, `bridge` and `tc` commands that build a lab, as pure data; _system.py runs them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slackline.lab import _names as names
from slackline.lab._options import LabOptions

__all__ = [
    "Batch",
    "Shaping",
    "add_namespaces",
    "burst_bytes",
    "configure_host",
    "delete_namespace",
    "kernel_up",
    "plug",
    "rate_changes",
    "shape",
    "user_up",
    "wire",
]


_TAP_QUEUE = 10_000
"""Frames that a NIC of the user-space switch buffers while the switch is busy. The default of 1000
overflows when traffic is made of single packets."""


@dataclass(frozen=True)
class Batch:
    """Command lines that one run of a tool executes in one network namespace."""

    tool: str
    """The tool: ip, bridge or tc."""
    namespace: str | None
    """The namespace to run in; None is the caller's own."""
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Shaping:
    """The parameters of a token bucket that limits a rate (tc-tbf)."""

    burst: int
    """Bytes that may be sent at once: a tenth of a millisecond of the rate, and at least 16 KiB.
    A smaller burst needs timers that fire more often than the kernel's timers. A larger burst lets
    a sender exceed its rate."""
    gso: int
    """The largest segment that the network stack hands over at once (GSO): three quarters of the
    burst, since a larger segment must be split again."""
    limit: int
    """Bytes that may wait in the queue: 33 ms of the rate. TCP by itself queues less than that, so
    a full wire delays its sender and drops nothing, even with four senders to one port."""


def burst_bytes(rate: int) -> int:
    """Return the size of the token bucket that suits a rate in bits per second."""
    return min(max(16 << 10, rate * 105 // 8_000_000), 160 << 10)


def shape(rate: int, burst: int | None = None) -> Shaping:
    """Return the token bucket for `rate` (bits per second), of `burst` bytes.

    If `burst` is None, the burst is chosen to suit the rate.
    """
    if burst is None:
        burst = burst_bytes(rate)
    return Shaping(
        burst=burst,
        gso=min(max(12_000, burst * 3 // 4), 65_536),
        limit=max(1 << 20, rate // 240),
    )


def add_namespaces(which: Iterable[str]) -> Batch:
    """Return the commands that create these network namespaces."""
    return Batch("ip", None, tuple(f"netns add {name}" for name in which))


def delete_namespace(name: str) -> Batch:
    """Return the command that deletes a network namespace with all its interfaces."""
    return Batch("ip", None, (f"netns delete {name}",))


def kernel_up(lab: str, options: LabOptions) -> Iterator[Batch]:
    """Yield the commands that create the kernel's bridges, virtual cables and rate limits.

    The namespaces must exist; the hosts are configured afterwards. Each bridge has a static table
    of MAC addresses and learns nothing, so that a frame to one host never reaches another.
    """
    home = names.fabric(lab)
    links, known = [], []
    for nic in range(options.nics):
        links.append(f"link add {names.bridge(nic)} type bridge mcast_snooping 0")
        links.append(f"link set {names.bridge(nic)} addrgenmode none mtu {options.mtu}")
        links.append(f"link set {names.bridge(nic)} up")
        for host in range(options.hosts):
            port, mac = names.port(host, nic), names.mac(host, nic)
            links.append(
                f"link add {port} mtu {options.mtu} type veth peer name {names.interface(nic)} "
                f"address {mac} mtu {options.mtu} netns {names.namespace(lab, host)}"
            )
            links.append(f"link set {port} addrgenmode none master {names.bridge(nic)}")
            links.append(f"link set {port} type bridge_slave learning off flood off")
            links.append(f"link set {port}{_gso(options)} up")
            known.append(f"fdb add {mac} dev {port} master static")
    yield Batch("ip", home, tuple(links))
    yield Batch("bridge", home, tuple(known))
    ports = [names.port(host, nic) for nic in range(options.nics) for host in range(options.hosts)]
    yield from rate_changes(home, ports, None, options.rate, options.burst)


def user_up(lab: str, options: LabOptions) -> Iterator[Batch]:
    """Yield the commands that set MAC, MTU and queue length of the user-space switch's NICs."""
    for host in range(options.hosts):
        lines = (
            f"link set {names.interface(nic)} address {names.mac(host, nic)} "
            f"mtu {options.mtu} txqueuelen {_TAP_QUEUE}"
            for nic in range(options.nics)
        )
        yield Batch("ip", names.namespace(lab, host), tuple(lines))


def plug(home: str, ports: Iterable[str], plugged: bool) -> Batch:
    """Return the commands that set these bridge ports up (`plugged`) or down."""
    state = "up" if plugged else "down"
    return Batch("ip", home, tuple(f"link set {port} {state}" for port in ports))


def configure_host(lab: str, options: LabOptions, host: int) -> Iterator[Batch]:
    """Yield the commands that set a host's addresses, neighbours and send rate.

    The host's interfaces must exist. Neighbour entries are static, which makes ARP unnecessary, and
    interfaces have no IPv6 address. Therefore every frame on the wire was sent by a program.
    """
    home = names.namespace(lab, host)
    lines = ["link set lo up"]
    for nic in range(options.nics):
        name = names.interface(nic)
        lines.append(f"link set {name} addrgenmode none{_gso(options)}")
        lines.append(f"link set {name} up")
        lines.append(f"address add {names.address(host, nic)}/24 dev {name}")
        lines += [
            f"neighbour add {names.address(peer, nic)} lladdr {names.mac(peer, nic)} dev {name} "
            "nud permanent"
            for peer in range(options.hosts)
            if peer != host
        ]
    yield Batch("ip", home, tuple(lines))
    interfaces = [names.interface(nic) for nic in range(options.nics)]
    yield from rate_changes(home, interfaces, None, options.rate, options.burst)


def wire(lab: str, options: LabOptions, first: int, second: int, name: str) -> Iterator[Batch]:
    """Yield the commands that join two hosts by a pair of interfaces, both with this name."""
    homes = [names.namespace(lab, host) for host in (first, second)]
    made = f"link add {name} mtu {options.mtu} type veth peer name {name} mtu {options.mtu}"
    yield Batch("ip", homes[0], (f"{made} netns {homes[1]}",))
    for home in homes:
        yield Batch("ip", home, (f"link set {name} addrgenmode none", f"link set {name} up"))


def rate_changes(
    home: str,
    devices: Iterable[str],
    before: int | None,
    after: int | None,
    burst: int | None = None,
) -> Iterator[Batch]:
    """Yield the commands that change the send rate of devices in one namespace.

    Rates are bits per second; None is no limit.
    """
    if before == after:
        return
    if after is None:
        lines = tuple(f"qdisc delete dev {device} root" for device in devices)
    else:
        bucket = shape(after, burst)
        lines = tuple(
            f"qdisc replace dev {device} root tbf rate {after}bit "
            f"burst {bucket.burst} limit {bucket.limit}"
            for device in devices
        )
    yield Batch("tc", home, lines)


def _gso(options: LabOptions) -> str:
    if options.rate is None:
        return ""
    return f" gso_max_size {shape(options.rate, options.burst).gso}"
