"""The page about a job and its metrics, served by `slackline top` and by `slackline run`."""

import importlib.util
import ipaddress
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slackline._distribution import install
from slackline.errors import UsageError

if TYPE_CHECKING:
    from slackline.views.metrics import Endpoint
    from slackline.views.page import Dashboard

__all__ = [
    "METRICS_ADDRESS",
    "MetricsFlag",
    "MetricsListen",
    "MetricsToken",
    "PageFlag",
    "PageListen",
    "Served",
    "require_client",
    "served",
    "signals_blocked",
]

METRICS_ADDRESS = "127.0.0.1:9464"
"""The address of the metrics unless an option names another one."""

_SHORTEST_TOKEN = 16
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_POLL_S = 0.5
"""The time after which a server that has failed is noticed."""

PageFlag = Annotated[
    bool, typer.Option("--page", help="Serve a page about the job at 127.0.0.1:8470.")
]
PageListen = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Serve the page at this address: 127.0.0.1:0, port 0 for any free port. Except on "
        "127.0.0.1, requests need a token, which the printed address has.",
    ),
]
MetricsFlag = Annotated[
    bool, typer.Option("--metrics", help=f"Serve metrics for Prometheus at {METRICS_ADDRESS}.")
]
MetricsListen = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Serve them at this address: 127.0.0.1:9500."),
]
MetricsToken = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Answer only requests with the token in this file; needed for an address that other "
        "machines can reach. Default: none.",
    ),
]


class Served:
    """The page and the endpoint of metrics that options ask for; their ports are open."""

    def __init__(self, page: "Dashboard | None", endpoint: "Endpoint | None") -> None:
        self._page, self._endpoint = page, endpoint

    def __bool__(self) -> bool:
        """Return whether options have asked for the page or for metrics."""
        return self._page is not None or self._endpoint is not None

    def start(self, directory: Path) -> list[str]:
        """Begin to answer requests about the job in a directory; return a sentence for each server.

        Requests that came before have waited.
        """
        from slackline.causes import Watch
        from slackline.history import Job

        said = []
        if self._page is not None:
            self._page.start(Job(directory))
            said.append(f"the page of this job: {self._page.url}")
        if self._endpoint is not None:
            self._endpoint.serve(Watch(Job(directory)))
            said.append(f"metrics for Prometheus at {self._endpoint.url}")
        return said

    @property
    def error(self) -> str:
        """A sentence on the error that has ended the page; empty without one."""
        if self._page is None or self._page.error is None:
            return ""
        return f"the page of this job has ended: {self._page.error!r}"

    def wait(self) -> None:
        """Block until SIGINT, SIGTERM or SIGHUP, which the calling thread must have blocked.

        Raises the error of a page that has failed.
        """
        while signal.sigtimedwait(_ENDING, _POLL_S) is None:
            if self._page is not None and self._page.error is not None:
                raise self._page.error


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block the signals that end a server, so that `Served.wait` gets them and no thread does."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def served(
    *,
    page: bool,
    page_listen: str | None,
    metrics: bool,
    metrics_listen: str | None,
    metrics_token: Path | None,
) -> Iterator[Served]:
    """Open the ports that options ask for, of the page and of the metrics, while the context lasts.

    Raises UsageError for a wrong address or token, a port in use, and a package that is missing.
    """
    if metrics_token is not None and not metrics and metrics_listen is None:
        raise UsageError(f"--metrics-token {metrics_token} is for --metrics and --metrics-listen")
    with ExitStack() as opened:
        shown = opened.enter_context(_page(page_listen)) if page or page_listen else None
        endpoint = None
        if metrics or metrics_listen is not None:
            require_client()
            from slackline.views.metrics import Endpoint

            address = checked(metrics_listen or METRICS_ADDRESS, metrics_token)
            endpoint = opened.enter_context(Endpoint(*address))
        yield Served(shown, endpoint)


def _page(listen: str | None) -> "Dashboard":
    """Open the port of the page; None stands for the default address."""
    try:
        from slackline.views.page import DEFAULT_PORT, Dashboard
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("slackline"):
            raise
        raise UsageError(
            f"the page needs the package {error.name}: {install('dashboard')}"
        ) from None
    if listen is None:
        return Dashboard(port=DEFAULT_PORT)
    from slackline.nic.host import parse_address

    host, port = parse_address(listen)
    return Dashboard(host=host, port=port)


def require_client() -> None:
    """Raise UsageError if prometheus_client is not installed."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise UsageError(f"metrics need the package prometheus_client: {install('metrics')}")


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
