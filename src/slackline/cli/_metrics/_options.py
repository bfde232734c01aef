"""The addresses and tokens of command lines, checked."""

import importlib.util
import ipaddress
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from slackline.errors import UsageError

__all__ = ["DEFAULT_ADDRESS", "checked", "require_client", "served_metrics"]

DEFAULT_ADDRESS = "127.0.0.1:9464"

_SHORTEST_TOKEN = 16


def require_client() -> None:
    """Raise UsageError if prometheus_client is not installed."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise UsageError(
            "metrics need the package prometheus_client: pip install 'slackline[metrics]'"
        )


def checked(address: str, token: Path | None) -> tuple[str, int, str | None]:
    """Return host, port and token of an endpoint at `address`, with a token from the file `token`.

    Raises UsageError if the address or the token's file is wrong, and if other machines can reach
    the address and there is no token.
    """
    from slackline.nic.host import parse_address, show_address

    host, port = parse_address(address)
    secret = None if token is None else read_token(token)
    if secret is None and not is_local(host):
        raise UsageError(
            f"other machines can reach {show_address(host, port)}: name a file with a token that "
            "Prometheus must send"
        )
    return host, port, secret


@contextmanager
def served_metrics(
    *, asked: bool, listen: str | None, token: Path | None
) -> Iterator[Callable[[Path], str | None]]:
    """Provide a function that serves the metrics of a directory, and returns their address.

    The port is open from the beginning of the context to its end. If neither `asked` nor `listen`
    asks for metrics, the function does nothing and returns None. Raises UsageError as `checked` and
    `Endpoint` do.
    """
    if not asked and listen is None:
        if token is not None:
            raise UsageError(f"--metrics-token {token} is for --metrics and --metrics-listen")
        yield lambda directory: None
        return
    require_client()
    from slackline.cli._metrics._endpoint import Endpoint
    from slackline.monitor import Job

    with Endpoint(*checked(listen or DEFAULT_ADDRESS, token)) as endpoint:

        def serve(directory: Path) -> str:
            endpoint.serve(Job(directory))
            return endpoint.url

        yield serve


def is_local(host: str) -> bool:
    """Return whether programs of this machine alone can reach the address or name `host`.

    Raises UsageError if the name cannot be resolved.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"the host {host!r} has no address: {error}") from None
    return all(
        ipaddress.ip_address(str(each[4][0]).partition("%")[0]).is_loopback for each in found
    )


def read_token(path: Path) -> str:
    """Return the token in a file: its only line, without blanks at both ends.

    Raises UsageError if the file cannot be read, or if the token is too short or has characters
    that an HTTP header cannot carry.
    """
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"the token {str(path)!r} cannot be read: {reason}") from None
    if len(token) < _SHORTEST_TOKEN:
        raise UsageError(
            f"the token {str(path)!r} must have at least {_SHORTEST_TOKEN} characters, "
            f"not {len(token)}"
        )
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise UsageError(f"the token {str(path)!r} must be one word of ASCII characters")
    return token
