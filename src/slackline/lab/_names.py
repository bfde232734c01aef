"""Names of a lab's namespaces and interfaces, and its addresses, as pure functions."""

__all__ = ["address", "bridge", "fabric", "hosts_file", "interface", "mac", "namespace", "port"]


def namespace(lab: str, host: int) -> str:
    """Return the name of the network namespace of a host: slackline-<lab>-<host>."""
    return f"slackline-{lab}-{host}"


def fabric(lab: str) -> str:
    """Return the name of the network namespace that holds the kernel's bridges."""
    return f"slackline-{lab}-fabric"


def interface(nic: int) -> str:
    """Return the interface name of a NIC on its host."""
    return f"eth{nic}"


def port(host: int, nic: int) -> str:
    """Return the name of the bridge port to which the cable of a host's NIC leads."""
    return f"p{host}.{nic}"


def bridge(nic: int) -> str:
    """Return the name of the bridge that joins all NICs with this number."""
    return f"br{nic}"


def address(host: int, nic: int) -> str:
    """Return the IPv4 address of a NIC; each NIC number has a /24 subnet of its own."""
    return f"10.77.{nic}.{host + 1}"


def mac(host: int, nic: int) -> str:
    """Return the MAC address of a NIC: locally administered, with the NIC and host number in it."""
    return f"02:53:4c:{nic:02x}:{host >> 8:02x}:{host & 255:02x}"


def hosts_file(hosts: int, host: int, machine: str) -> str:
    """Return the text of a host's /etc/hosts: localhost, all hosts, and the machine's own name.

    The machine's name leads to the host's first NIC, so that programs that look up their own
    address find it. IPv4-mapped IPv6 addresses have names of their own, for programs that use IPv4
    over IPv6 sockets.
    """
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    for each in range(hosts):
        own = f" {machine}" if each == host else ""
        lines.append(f"{address(each, 0)} host{each}{own}")
        lines.append(f"::ffff:{address(each, 0)} host{each}.mapped")
    return "\n".join(lines) + "\n"
