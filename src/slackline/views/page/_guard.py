"""The checks of every request: the name of the host, and the token where one is needed.

A web page of another site may send requests to an address of this machine; after a DNS rebinding
its requests even count as requests to its own site. Such requests name that site as their host, so
only addresses and the names of this machine are accepted.
"""

import hmac
import ipaddress
import socket

from aiohttp import web
from aiohttp.typedefs import Handler

__all__ = ["HEADERS", "Guard", "host_of", "is_loopback"]

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
"""The headers of every response: nothing is loaded from elsewhere, no script of the page's text."""


class Guard:
    """The checks of one server's requests."""

    def __init__(self, token: str | None, port: int) -> None:
        """Create checks of the host's name and, unless `token` is None, of the token."""
        self._token = token
        self._names = {"localhost", socket.gethostname().lower()}
        self.cookie = f"slackline-{port}"
        """The name of the cookie that keeps the token."""

    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request whose host and token are right; refuse others with 403 and 401."""
        host = host_of(request.headers.get("Host", ""))
        if not self._accepts(host):
            return _refusal(403, f"the host {host!r} is neither an address nor this machine's name")
        if self._token is None:
            return await handler(request)
        given = request.query.get("token")
        shown = request.cookies.get(self.cookie, "") if given is None else given
        if not hmac.compare_digest(shown.encode(), self._token.encode()):
            return _refusal(401, "the token is missing or wrong: open the address with the token")
        return await handler(request)

    def admit(self, response: web.StreamResponse) -> None:
        """Have the browser keep the token for the requests of the page."""
        if self._token is not None:
            response.set_cookie(self.cookie, self._token, httponly=True, samesite="Strict")

    def _accepts(self, host: str) -> bool:
        if host.lower().rstrip(".") in self._names:
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True


def host_of(header: str) -> str:
    """Return the host in a Host header, without the port: "::1" of "[::1]:8470"."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def is_loopback(address: str) -> bool:
    """Return whether an IP address belongs to this machine alone."""
    return ipaddress.ip_address(address).is_loopback


def _refusal(status: int, sentence: str) -> web.Response:
    return web.Response(status=status, text=f"{sentence}\n")
