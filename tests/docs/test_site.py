"""Tests of the site of `make docs`: no warning, and no file from elsewhere."""

import http.client
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from page_blocks import PAGES, ROOT

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src"}
"""The attribute by which an element loads a file."""


class Resources(HTMLParser):
    """The addresses of the files that a page loads, its links, and its anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()

    @classmethod
    def of(cls, page: Path) -> "Resources":
        parser = cls()
        parser.feed(page.read_text())
        return parser

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.add(given.get("id", ""))
        if tag == "a":
            self.anchors.add(given.get("name", ""))
            if "href" in given:
                self.links.append(given["href"])
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.found.append(given.get("href", ""))
        elif tag in LOADED and LOADED[tag] in given:
            self.found.append(given[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    # The namespace has no network, so a build that needs one fails.
    command = ["unshare", "--map-root-user", "--net", sys.executable, "-m", "mkdocs", "build"]
    result = subprocess.run(
        [*command, "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        parser = Resources.of(page)
        away = [each for each in parser.found if re.match(r"(\w+:)?//", each)]
        assert away == [], page
        for each in parser.found:
            path = each.partition("?")[0].partition("#")[0]
            if page.name != "404.html" and path and not path.startswith("data:"):
                assert (page.parent / path).exists(), f"{page}: {each}"
    for sheet in site.rglob("*.css"):
        assert re.findall(r"(?:@import|url\()\s*['\"]?https?:", sheet.read_text()) == [], sheet


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_page_is_on_the_site_and_can_be_searched(site: Path) -> None:
    for page in PAGES:
        place = page.relative_to(ROOT)
        name = "index.html" if place.name == "README.md" else place.with_suffix(".html").name
        assert (site / place.parent / name).exists(), place
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"docs/tutorial.html", "docs/reference/overlap.html"} <= found


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("overlap", "slackline.overlap.DataParallel"),
        ("pipeline", "slackline.pipeline.Schedule.step"),
        ("elastic", "slackline.elastic.shrink"),
        ("errors", "slackline.errors.PeerError"),
        ("nic", "slackline.nic.NicOptions.timeout"),
    ],
)
def test_the_reference_has_the_public_names(site: Path, page: str, name: str) -> None:
    text = (site / "docs" / "reference" / f"{page}.html").read_text()
    assert f'id="{name}"' in text


def dead_links(site: Path) -> list[str]:
    """Return each link from a page of the site to a file or an anchor that the site lacks."""
    # The page for wrong addresses has absolute links, as its own address may have any depth.
    pages = {page: Resources.of(page) for page in site.rglob("*.html") if page.name != "404.html"}
    dead = []
    for page, parsed in pages.items():
        for link in parsed.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            there = pages.get(target)
            lacks = anchor and (there is None or anchor not in there.anchors)
            if parts.path.startswith("/") or not target.exists() or lacks:
                dead.append(f"{page.relative_to(site)}: {link}")
    return dead


def test_a_dead_link_and_a_dead_anchor_are_found(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "index.html").write_text(
        '<a href="folder/page.html#here"></a> <a href="folder/page.html#away"></a>'
        '<a href="none.html"></a> <a href="#top"></a> <a href="https://example.org/none"></a>'
        '<h1 id="top"></h1> <a href="/index.html"></a>'
    )
    (tmp_path / "folder" / "page.html").write_text('<h2 id="here"></h2> <a href=".."></a>')
    assert dead_links(tmp_path) == [
        "index.html: folder/page.html#away",
        "index.html: none.html",
        "index.html: /index.html",
    ]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_no_link_and_no_anchor_of_the_site_is_dead(site: Path) -> None:
    assert dead_links(site) == []


@pytest.fixture
def served(site: Path, tmp_path: Path) -> Iterator[str]:
    """Serve the site under the path "sub/path/", and provide the address of its first page."""

    class Silent(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "path").symlink_to(site)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=tmp_path)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/sub/path/index.html"
        server.shutdown()
        thread.join()


def got(address: str) -> bytes:
    """Return the answer to a request; fail if the server has no such file."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.netloc, timeout=20)
    connection.request("GET", parts.path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status == 200, address
    return body


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("page", ["index.html", "docs/how-to/run.html"])
def test_a_page_under_another_path_finds_its_files_and_the_search(served: str, page: str) -> None:
    address = urljoin(served, page)
    text = got(address).decode()
    parser = Resources()
    parser.feed(text)
    loaded = [each for each in parser.found if not each.startswith("data:")]
    assert any("assets/javascripts/bundle" in each for each in loaded)
    for each in loaded:
        got(urljoin(address, each))
    # The script takes the addresses of the search from this object, relative to the page.
    settings = re.search(r'<script id="__config" type="application/json">(.*?)</script>', text)
    assert settings is not None
    config = json.loads(settings[1])
    base = urljoin(address, config["base"] + "/")
    assert base == urljoin(served, ".")
    got(urljoin(address, config["search"]))
    index = json.loads(got(urljoin(base, "search/search_index.json")))
    for entry in index["docs"][::50]:
        got(urljoin(base, entry["location"].partition("#")[0] or "index.html"))
