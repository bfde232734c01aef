"""The loopback address, at which the ranks of a job on one machine meet.

Such a job needs no name of the machine and no name server: torchrun would otherwise look up the
machine's own name, and wait without end where the name has no address.
"""

import errno
import socket
from contextlib import ExitStack

from slackline.errors import UsageError

__all__ = ["ADDRESSES", "loopback_address", "require_ports", "usable"]

ADDRESSES = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}
"""The loopback addresses in the order of preference, each with its family."""

_PLENTY = 16
"""A range of so many times the needed ports is not tried port by port."""

_PATIENCE_S = 2.0
"""The time that a connection to the own machine may take before the address counts as unusable."""


def loopback_address() -> str:
    """Return 127.0.0.1, or ::1 on a machine without IPv4.

    Raises UsageError, with the reason for each address, if a connection to neither of them works.
    """
    reasons = []
    for address in ADDRESSES:
        if not (reason := usable(address)):
            return address
        reasons.append(f"{address}: {reason}")
    raise UsageError(
        f"the ranks of this machine meet at its loopback address, which does not work "
        f"({'; '.join(reasons)}); bring the interface up: ip link set dev lo up"
    )


def require_ports(address: str, ranks: int) -> None:
    """Check that a job of `ranks` ranks finds the ports that it needs at a loopback address.

    The job's store listens at one port; torchrun and each rank are connected to the store, and each
    rank listens itself. Raises UsageError that names the kernel's range of ports.
    """
    from slackline.nic.host import port_range, port_range_text  # Other commands need no engine.

    needed = 2 * ranks + 2
    first, last = port_range()
    if last - first >= _PLENTY * needed:
        return
    with ExitStack() as stack:
        for free in range(needed):
            try:
                sock = stack.enter_context(socket.socket(ADDRESSES[address], socket.SOCK_STREAM))
                sock.bind((address, 0))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise UsageError(f"the free ports cannot be counted: {error}") from error
                raise UsageError(
                    f"a job of {ranks} {'rank' if ranks == 1 else 'ranks'} on this machine needs "
                    f"{needed} free ports of {address}, and {free} are free: {port_range_text()}"
                ) from error


def usable(address: str) -> str:
    """Return why no connection to a loopback address works; empty if one works."""
    family = ADDRESSES[address]
    try:
        with (
            socket.socket(family, socket.SOCK_STREAM) as listener,
            socket.socket(family, socket.SOCK_STREAM) as dialled,
        ):
            listener.bind((address, 0))
            listener.listen(1)
            dialled.settimeout(_PATIENCE_S)
            dialled.connect(listener.getsockname())
    except OSError as error:
        return error.strerror or str(error)
    return ""
