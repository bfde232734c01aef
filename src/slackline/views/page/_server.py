"""The server of the page: a thread with an event loop, which answers HTTP requests.

/                     the page
/static/NAME          its scripts and styles
/events               the panels, as server-sent events: one event for each panel that changes
/panels/NAME          one panel
/links/SOURCE/TARGET  the history of one direction of a link
"""

import asyncio
import errno
import ipaddress
import secrets
import socket
import threading
from contextlib import suppress
from datetime import timedelta
from importlib import resources
from pathlib import Path
from typing import Self

from aiohttp import web
from aiohttp.typedefs import Handler

from slackline.errors import UsageError
from slackline.history import Job
from slackline.views.page._feed import Feed, Panels
from slackline.views.page._guard import HEADERS, Guard, is_loopback

__all__ = ["DEFAULT_PORT", "Dashboard"]

DEFAULT_PORT = 8470
"""The port of the page unless another one is chosen."""

_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
_MOST_READERS = 32
"""The most pages that may be open at a time."""
_ALIVE = timedelta(seconds=10)
"""The time after which an event stream without news sends a comment, to notice lost readers."""
_PATIENCE_S = 2.0
"""The time that open connections have to end when the server is closed."""
_LAST_PORT = 65535


class Dashboard:
    """A page about a job at an address of this machine, from `start` until `close`."""

    def __init__(self, *, host: str = "127.0.0.1", port: int = DEFAULT_PORT) -> None:
        """Reserve a port of an IP address of this machine; port 0 chooses a free port.

        With another address than one of the loopback network, every request needs a token, which
        is in `url`. Raises UsageError for a wrong address or port, and for a port in use.
        """
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        """The port that is used."""
        self.token = None if is_loopback(host) else secrets.token_urlsafe(24)
        """The text that every request must have; None if no token is needed."""
        self._host = host
        self._guard = Guard(self.token, self.port)
        self._files = _static_files()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()
        self._stopping = False
        self._started = threading.Event()
        self.error: BaseException | None = None
        """The error that has ended the server; None while there is none."""

    @property
    def url(self) -> str:
        """The address of the page, with the token if one is needed."""
        host = self._host
        if ipaddress.ip_address(host).is_unspecified:
            host = socket.gethostname()
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{self.port}/"
        return address if self.token is None else f"{address}?token={self.token}"

    def start(self, job: Job) -> None:
        """Begin to answer requests about `job`, in a thread; only this thread uses `job` then.

        Raises the error with which the thread has ended if it cannot begin.
        """
        self._thread = threading.Thread(
            target=self._run, args=(job,), name="slackline-dashboard", daemon=True
        )
        self._thread.start()
        self._started.wait()
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Ask the server to end, from any thread or signal handler, without waiting."""
        self._stopping = True  # for a loop that has not started yet
        if self._loop is None:
            return
        with suppress(RuntimeError):  # the loop is closed: the server has ended already
            self._loop.call_soon_threadsafe(self._over.set)

    def wait(self) -> None:
        """Block until the server has ended; raise the error that has ended it, if there is one."""
        if self._thread is not None:
            self._thread.join()
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """End the server and all open connections; block until the thread has ended.

        An error of the server stays in `error`.
        """
        self.stop()
        if self._thread is not None:
            self._thread.join()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, job: Job) -> None:
        try:
            asyncio.run(self._serve(Feed(job)))
        except BaseException as error:
            self.error = error
        finally:
            self._started.set()

    async def _serve(self, feed: Feed) -> None:
        self._loop = asyncio.get_running_loop()
        if self._stopping:
            self._over.set()
        runner = web.AppRunner(
            self._application(feed),
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=_PATIENCE_S,
        )
        await runner.setup()
        try:
            await web.SockSite(runner, self._socket).start()
            self._started.set()
            following = asyncio.create_task(feed.follow())
            over = asyncio.create_task(self._over.wait())
            await asyncio.wait((following, over), return_when=asyncio.FIRST_COMPLETED)
            over.cancel()
            await feed.close()
            await following  # raises the error that has ended the reading of the files
        finally:
            await runner.cleanup()

    def _application(self, feed: Feed) -> web.Application:
        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._guard.check(request, handler)

        async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
            response.headers.update(HEADERS)

        async def page(request: web.Request) -> web.Response:
            response = self._file("index.html")
            self._guard.admit(response)
            return response

        async def static(request: web.Request) -> web.Response:
            return self._file(request.match_info["name"])

        async def panel(request: web.Request) -> web.Response:
            return web.json_response(text=await feed.panel(request.match_info["name"]))

        async def link(request: web.Request) -> web.Response:
            ends = int(request.match_info["source"]), int(request.match_info["target"])
            return web.json_response(text=await feed.link(*ends))

        async def events(request: web.Request) -> web.StreamResponse:
            return await _stream(request, feed)

        application = web.Application(middlewares=[check])
        application.on_response_prepare.append(add_headers)
        names = "|".join(Panels.NAMES)
        application.add_routes(
            [
                web.get("/", page),
                web.get("/static/{name}", static),
                web.get(f"/panels/{{name:{names}}}", panel),
                web.get(r"/links/{source:\d{1,9}}/{target:\d{1,9}}", link),
                web.get("/events", events, allow_head=False),
            ]
        )
        return application

    def _file(self, name: str) -> web.Response:
        if name not in self._files:
            raise web.HTTPNotFound(text=f"there is no file {name!r}\n")
        kind = _TYPES[Path(name).suffix]
        return web.Response(body=self._files[name], content_type=kind, charset="utf-8")


async def _stream(request: web.Request, feed: Feed) -> web.StreamResponse:
    """Send the panels that change, as events, until the reader leaves or the feed is closed."""
    if feed.readers >= _MOST_READERS:
        return web.Response(
            status=503, text=f"{_MOST_READERS} pages are open; close one of them first\n"
        )
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    feed.enter()
    try:
        await response.prepare(request)
        known: dict[str, int] = {}
        closed = False
        while not closed:
            closed = feed.closed
            news = await feed.changes(known, _ALIVE)
            for name, version, text in news:
                await response.write(f"event: {name}\ndata: {text}\n\n".encode())
                known[name] = version
            if not news:
                await response.write(b":\n\n")
        await response.write(b"event: closed\ndata: {}\n\n")
    except ConnectionResetError:
        pass  # the reader has left
    finally:
        feed.leave()
    return response


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at the address; raise UsageError that names the mistake."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    except ValueError:
        raise UsageError(
            f"the page's address must be an IP address such as 127.0.0.1 or 0.0.0.0, not {host!r}"
        ) from None
    if not 0 <= port <= _LAST_PORT:
        raise UsageError(f"the page's port must be 0 to {_LAST_PORT}, not {port}")
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port {port} of {host} is in use: choose another one, or 0 for any free port"
            ) from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise UsageError(f"{host} is not an address of this machine") from None
        raise UsageError(f"cannot listen at port {port} of {host}: {error.strerror}") from None
    return listening


def _static_files() -> dict[str, bytes]:
    folder = resources.files("slackline.views.page") / "static"
    return {
        each.name: each.read_bytes()
        for each in folder.iterdir()
        if Path(each.name).suffix in _TYPES
    }
