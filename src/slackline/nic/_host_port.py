"""Texts of a host and a port, such as "10.0.0.9:7000"."""

from slackline.errors import UsageError

__all__ = ["parse_address", "show_address"]

_LAST_PORT = 65535


def show_address(address: str, port: int) -> str:
    """Return address and port as one text: "10.0.0.9:7000", "[fd00::9]:7000"."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of a text like "10.0.0.9:7000" or "[fd00::9]:7000".

    Raises UsageError for any other text.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not host or not colon or not (port.isascii() and port.isdigit()) or int(port) > _LAST_PORT:
        raise UsageError(f"an address must be like 10.0.0.9:7000 or [fd00::9]:7000, not {text!r}")
    return host, int(port)
