"""Tests of the page's server by a plain HTTP client: its files, events, checks and end."""

import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from job_records import report, step, verdict
from made_records import header, write

pytest.importorskip("aiohttp", reason="the page needs slackline-torch[dashboard]")

from slackline.errors import UsageError
from slackline.history import Job
from slackline.views.page import Dashboard, Panels
from slackline.views.page._feed import pause_after
from slackline.views.page._guard import host_of

PANELS = set(Panels.NAMES)


@contextmanager
def served(directory: Path, host: str = "127.0.0.1") -> Iterator[Dashboard]:
    with Dashboard(host=host, port=0) as page:
        page.start(Job(directory))
        yield page
    assert page.error is None


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Dashboard]:
    write(tmp_path, 0, header(0), step(0, 0))
    with served(tmp_path) as page:
        yield page


def get(
    page: Dashboard, path: str, *, method: str = "GET", **headers: str
) -> tuple[int, str, dict[str, str]]:
    """Return the status, the text and the headers of an answer."""
    with closing(http.client.HTTPConnection("127.0.0.1", page.port, timeout=30)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())


class Events:
    """A reader of the event stream."""

    def __init__(self, page: Dashboard, path: str = "/events") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=30)
        self._connection.request("GET", path)
        self._answer = self._connection.getresponse()
        self.status = self._answer.status

    def next(self) -> tuple[str, Any]:
        """Return the name and the content of the next event."""
        name = ""
        while line := self._answer.readline().decode():
            if line.startswith("event: "):
                name = line.removeprefix("event: ").strip()
            elif line.startswith("data: "):
                return name, json.loads(line.removeprefix("data: "))
        raise EOFError

    def until(self, name: str) -> Any:
        """Return the content of the next event of this name."""
        while True:
            found, content = self.next()
            if found == name:
                return content

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


def test_the_page_and_its_files_come_from_the_server_alone(page: Dashboard) -> None:
    status, text, headers = get(page, "/")
    assert status == 200
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    loaded = re.findall(r'(?:src|href)="([^"]+)"', text)
    assert "/static/app.js" in loaded
    for path in loaded:
        assert path.startswith("/static/")
        status, text, _ = get(page, path)
        assert status == 200, path
        loaded += [f"/static/{name}" for name in re.findall(r'from "\./([^"]+)"', text)]
    assert len(set(loaded)) == 10
    assert get(page, "/static/nothing.js")[0] == 404
    assert get(page, "/static/..%2f_server.py")[0] == 404
    assert get(page, "/", method="POST")[0] == 405


def test_every_answer_forbids_scripts_from_elsewhere(page: Dashboard) -> None:
    for path in ("/", "/static/app.js", "/panels/overview", "/nothing"):
        headers = get(page, path)[2]
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; "), path
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_a_new_reader_gets_every_panel_and_then_those_that_change(
    page: Dashboard, tmp_path: Path
) -> None:
    with closing(Events(page)) as events:
        first = dict(events.next() for _ in PANELS)
        assert set(first) == PANELS
        assert [rank["steps"] for rank in first["overview"]["ranks"]] == [1]
        write(tmp_path, 0, step(0, 1))
        while [rank["steps"] for rank in events.until("overview")["ranks"]] != [2]:
            pass
        write(tmp_path, 1, header(1), verdict(1, 0, 1, 3, "slow", "link 0>1 is slow"))
        while not (cells := events.until("links")["cells"]):
            pass
        assert [(each["source"], each["target"], each["condition"]) for each in cells] == [
            (0, 1, "slow")
        ]


def test_a_finding_reaches_the_reader(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path, rank, header(rank))
    with served(tmp_path) as page, closing(Events(page)) as events:
        assert events.until("messages") == {"causes": [], "messages": []}
        write(tmp_path, 0, verdict(0, 0, 1, 3, "slow", "link 0>1 is slow"))
        while not (found := events.until("messages")["messages"]):
            pass
        assert [each["text"] for each in found] == ["link 0>1 is slow"]


def test_panels_and_links_can_be_asked_for(tmp_path: Path) -> None:
    write(tmp_path, 0, header(0), report(0, 1, 5))
    with served(tmp_path) as page, closing(Events(page)) as events:
        events.until("overview")  # the files have been read
        status, text, headers = get(page, "/panels/overview")
        assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
        assert json.loads(text)["world"] == 1
        assert json.loads(get(page, "/links/0/1")[1])["rails"][0]["rate_bps"] == [100e6]
        assert get(page, "/panels/nothing")[0] == 404
        assert get(page, "/links/0/x")[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_host_that_is_not_this_machine_is_refused(page: Dashboard, host: str) -> None:
    for path in ("/", "/events", "/panels/overview"):
        status, text, _ = get(page, path, Host=host)
        assert status == 403
        name = host.removesuffix(":80")
        assert text == f"the host {name!r} is neither an address nor this machine's name\n"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9000", "127.0.0.1:1", "[::1]:8470"])
def test_names_of_this_machine_are_accepted_at_any_port(page: Dashboard, host: str) -> None:
    assert get(page, "/", Host=host)[0] == 200


def test_the_host_is_read_without_its_port() -> None:
    assert [host_of(text) for text in ("a:1", "[::1]:2", "[::1]", "::1")] == ["a", "::1", "::1", ""]


def test_elsewhere_every_request_needs_the_token(tmp_path: Path) -> None:
    write(tmp_path, 0, header(0))
    with served(tmp_path, "0.0.0.0") as page:
        token = page.token
        assert token is not None
        assert len(token) == 32
        assert page.url == f"http://{socket.gethostname()}:{page.port}/?token={token}"
        refused = "the token is missing or wrong: open the address with the token\n"
        for path in ("/", "/static/app.js", "/events", "/panels/overview", "/links/0/1"):
            assert get(page, path)[:2] == (401, refused), path
            assert get(page, f"{path}?token={token[:-1]}")[0] == 401, path
            assert get(page, path, Cookie=f"slackline-{page.port}=wrong")[0] == 401, path
        assert get(page, "/?token=%C3%A9")[0] == 401
        status, _, headers = get(page, f"/?token={token}")
        assert status == 200
        cookie = headers["Set-Cookie"]
        assert cookie.startswith(f"slackline-{page.port}={token}; ")
        assert {"HttpOnly", "SameSite=Strict"} <= set(cookie.split("; "))
        kept = cookie.partition(";")[0]
        assert get(page, "/panels/overview", Cookie=kept)[0] == 200
        with closing(Events(page, f"/events?token={token}")) as events:
            assert events.status == 200
            assert events.until("overview")["world"] == 1


def test_two_servers_have_different_tokens() -> None:
    with Dashboard(host="0.0.0.0", port=0) as one, Dashboard(host="0.0.0.0", port=0) as other:
        assert one.token != other.token
    with Dashboard(port=0) as local:
        assert local.token is None
        assert local.url == f"http://127.0.0.1:{local.port}/"


def test_readers_are_told_that_the_server_ends(tmp_path: Path) -> None:
    write(tmp_path, 0, header(0))
    with served(tmp_path) as page:
        events = [Events(page) for _ in range(3)]
        for each in events:
            each.until("overview")
        page.stop()
        for each in events:
            assert each.until("closed") == {}
            with pytest.raises(EOFError):
                each.next()
            each.close()
        page.wait()
    assert not [thread for thread in threading.enumerate() if "dashboard" in thread.name]


def test_a_limit_bounds_the_open_pages(page: Dashboard) -> None:
    events = [Events(page) for _ in range(32)]
    try:
        assert {each.status for each in events} == {200}
        status, text, _ = get(page, "/events")
        assert (status, text) == (503, "32 pages are open; close one of them first\n")
    finally:
        for each in events:
            each.close()


def test_records_that_a_file_refuses_are_a_problem_on_the_page(tmp_path: Path) -> None:
    write(tmp_path, 0, header(0))
    (tmp_path / "rank-00001.jsonl").mkdir()
    with served(tmp_path) as page, closing(Events(page)) as events:
        assert events.until("problems")["problems"] == [
            f"cannot read {tmp_path / 'rank-00001.jsonl'}: Is a directory"
        ]


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        (
            "example.org",
            0,
            "the page's address must be an IP address such as 127.0.0.1 or 0.0.0.0, not "
            "'example.org'",
        ),
        ("127.0.0.1", 65536, "the page's port must be 0 to 65535, not 65536"),
        ("127.0.0.1", -1, "the page's port must be 0 to 65535, not -1"),
        ("203.0.113.9", 0, "203.0.113.9 is not an address of this machine"),
    ],
)
def test_a_wrong_address_is_named(host: str, port: int, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        Dashboard(host=host, port=port)
    assert str(raised.value) == message


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError) as raised:
            Dashboard(port=port)
    assert str(raised.value) == (
        f"port {port} of 127.0.0.1 is in use: choose another one, or 0 for any free port"
    )


def test_readings_that_take_long_are_less_frequent() -> None:
    assert pause_after(timedelta(milliseconds=20)) == timedelta(milliseconds=150)
    assert pause_after(timedelta(seconds=2)) == timedelta(seconds=8)


def test_text_from_records_never_becomes_markup() -> None:
    folder = Path(__file__).parents[4] / "src" / "slackline" / "views" / "page" / "static"
    scripts = sorted(folder.glob("*.js"))
    assert len(scripts) == 7
    unsafe = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|srcdoc")
    for script in scripts:
        if not script.name.startswith("uPlot"):
            assert unsafe.findall(script.read_text()) == [], script
