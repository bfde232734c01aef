"""Tests of the site of `make docs`: no warning, and no file from elsewhere."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from page_blocks import PAGES, ROOT

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src"}
"""The attribute by which an element loads a file."""


class Resources(HTMLParser):
    """The addresses of the files that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
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
        parser = Resources()
        parser.feed(page.read_text())
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
