"""What things in a lab are called: namespaces, interfaces, addresses. Pure."""

__all__ = ["address", "bridge", "fabric", "hosts_file", "interface", "mac", "namespace", "port"]


def namespace(lab: str, host: int) -> str:
    """The network namespace that is this host: slackline-<lab>-<host>."""
    return f"slackline-{lab}-{host}"


def fabric(lab: str) -> str:
    """The network namespace that the kernel's bridges live in."""
    return f"slackline-{lab}-fabric"


def interface(nic: int) -> str:
    """A NIC as its host sees it."""
    return f"eth{nic}"


def port(host: int, nic: int) -> str:
    """The bridge's end of the cable to a host's NIC."""
    return f"p{host}.{nic}"


def bridge(nic: int) -> str:
    """The bridge that joins the NICs with this number."""
    return f"br{nic}"


def address(host: int, nic: int) -> str:
    """The IPv4 address of a NIC; /24, one subnet for each NIC number."""
    return f"10.77.{nic}.{host + 1}"


def mac(host: int, nic: int) -> str:
    """The MAC of a NIC: a locally administered one that says whose it is."""
    return f"02:53:4c:{nic:02x}:{host >> 8:02x}:{host & 255:02x}"


def hosts_file(hosts: int, host: int, machine: str) -> str:
    """/etc/hosts of a host: localhost, all hosts by name, and the machine's own name for itself.

    So programs that look up their own address find their first NIC. Programs that speak IPv4 over
    IPv6 sockets ask for the name of the mapped address: it has one of its own.
    """
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    for each in range(hosts):
        own = f" {machine}" if each == host else ""
        lines.append(f"{address(each, 0)} host{each}{own}")
        lines.append(f"::ffff:{address(each, 0)} host{each}.mapped")
    return "\n".join(lines) + "\n"
