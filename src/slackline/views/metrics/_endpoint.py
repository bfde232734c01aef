"""The HTTP endpoint that Prometheus scrapes, and the token that opens it."""

import hmac
import logging
import socket
import sys
import threading
from collections.abc import Iterable
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import make_wsgi_app

from slackline.causes import Watch
from slackline.errors import UsageError
from slackline.nic.host import show_address
from slackline.views.metrics._collector import registry_of

__all__ = ["Endpoint"]

_log = logging.getLogger("slackline.metrics")

_REQUEST_S = 10.0
"""The time that a client has to send its request, and to take each part of the answer."""

_MOST_REQUESTS = 16
"""The most requests at a time; further connections are closed."""

_POLL_S = 0.1
"""The time after which the endpoint sees that it is to close."""


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        _log.debug(format, *args)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._places = threading.BoundedSemaphore(_MOST_REQUESTS)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer would ask the resolver for the host's name, which can take long.
        TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            _log.warning("more than %d requests at a time: one is closed", _MOST_REQUESTS)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # The thread has not started.
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if isinstance(sys.exception(), OSError):
            _log.info("a request of %s ended early: %s", client_address, sys.exception())
        else:
            _log.error("a request of %s failed", client_address, exc_info=True)


class Endpoint:
    """An endpoint at an address of this host, whose port is open from the construction on.

    Requests wait until `serve` gives the endpoint a job.
    """

    def __init__(self, host: str, port: int, token: str | None = None) -> None:
        """Open the port; port 0 takes a free one. With `token`, each request must state the token.

        Raises UsageError if the address is not one of this host, or if its port is in use.
        """
        self._token = token
        try:
            self._server = _Server(host, port)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"cannot listen at {show_address(host, port)}: {reason}") from None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The address of the metrics, with the port that was taken."""
        host, port = self._server.server_address[:2]
        return f"http://{show_address(str(host), int(port))}/metrics"

    def serve(self, watch: Watch) -> None:
        """Answer requests with the metrics of a job in threads of their own, until `close`."""
        self._server.set_app(_guarded(make_wsgi_app(registry_of(watch)), self._token))
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": _POLL_S},
            name="slackline-metrics",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Close the port; requests that are being answered may end with an error."""
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _guarded(answer: WSGIApplication, token: str | None) -> WSGIApplication:
    """Return an application that refuses requests without the token, with status 401."""
    if token is None:
        return answer
    wanted = f"Bearer {token}".encode()

    def guarded(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        given = str(environ.get("HTTP_AUTHORIZATION", ""))
        if hmac.compare_digest(given.encode("latin-1", "replace"), wanted):
            return answer(environ, start)
        start(
            "401 Unauthorized",
            [("Content-Type", "text/plain; charset=utf-8"), ("WWW-Authenticate", "Bearer")],
        )
        return [b"the request has no token, or another one\n"]

    return guarded
