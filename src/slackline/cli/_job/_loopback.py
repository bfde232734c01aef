"""The loopback address, at which the ranks of a job on one machine meet.

Such a job needs no name of the machine and no name server: torchrun would otherwise look up the
machine's own name, and wait without end where the name has no address.
"""

import socket

from slackline.errors import UsageError

__all__ = ["ADDRESSES", "loopback_address", "usable"]

ADDRESSES = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}
"""The loopback addresses in the order of preference, each with its family."""

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
