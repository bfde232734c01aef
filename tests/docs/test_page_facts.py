"""Tests that the pages agree with each other and with the code: links, figures, messages."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from page_blocks import PAGES, ROOT, blocks

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
MESSAGES = ("src", "native")
NOT_ON_THE_SITE = set(re.findall(r"^  \*(\.\w+)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
"""The ends of the names of files that the site leaves out."""


def anchors(page: Path) -> set[str]:
    """Return the anchors of the page's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading.lower()).strip() for heading in headings)
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    text = FENCED.sub("", page.read_text())
    wrong = []
    for link in LINK.findall(text):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        missing = not target.is_file() or (anchor and anchor not in anchors(target))
        if missing or target.suffix in NOT_ON_THE_SITE:
            wrong.append(link)
    assert wrong == []


def table(page: str, head: str) -> list[list[str]]:
    """Return the cells of the rows of the table whose first line is `head`."""
    lines = (ROOT / page).read_text().splitlines()
    start = lines.index(head) + 2
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_the_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    figures = re.compile(r"\d+\.\d+|\d{2,}")
    known = set(figures.findall((ROOT / "docs/benchmarks.md").read_text()))
    rows = table("README.md", "| | measured | |")
    assert len(rows) > 5
    asked = {number for _, measured, _ in rows for number in figures.findall(measured)}
    assert asked - known == set()


def test_the_readme_says_which_rows_lose() -> None:
    rows = table("README.md", "| | measured | |")
    below = re.compile(r"\*\*0\.\d+\*\* times the speed")
    assert {verdict for _, measured, verdict in rows if below.match(measured)} == {"loses"}
    assert [verdict for *_, verdict in rows].count("loses") >= 3


def literals() -> str:
    """Return the text of all source files with the joints of split string literals closed."""
    files = [
        path
        for folder in MESSAGES
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".cc", ".h"}
    ]
    text = "\n".join(path.read_text() for path in files)
    return re.sub(r"\"\s*\n\s*f?\"", "", text)


def test_messages_to_look_up_are_messages_of_the_code() -> None:
    text = literals()
    page = (ROOT / "docs/troubleshooting.md").read_text()
    quoted = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(quoted) > 20
    parts = [part.strip() for message in quoted for part in message.split("…")]
    assert [part for part in parts if len(part) > 5 and part not in text] == []


def test_the_first_collective_of_the_start_page_is_the_example() -> None:
    (shown,) = [each for each in blocks(ROOT / "docs/start.md") if each.language == "python"]
    assert shown.title == "first_collective.py"
    assert shown.body == (ROOT / "examples" / shown.title).read_text()


@pytest.fixture(scope="module")
def plots() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plots", ROOT / "benchmarks" / "plots.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["plots"] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


def test_the_figures_show_the_numbers_of_their_tables(plots: ModuleType) -> None:
    """Compare figures and tables; after a change of a table, `make plots` draws the figures."""
    stale = [plot.name for plot in plots.PLOTS if plots.shown(plot.name) != plots.data(plot)]
    assert stale == []


def test_every_figure_is_shown_on_the_page_of_benchmarks(plots: ModuleType) -> None:
    page = (ROOT / "docs/benchmarks.md").read_text()
    drawn = {path.name for path in (ROOT / "docs" / "plots").iterdir()}
    assert [name for name in sorted(drawn) if f"(plots/{name})" not in page] == []
    # Two figures are drawn from records of benchmarks, the others are drawn from tables.
    recorded = {"failover.svg", "fine-tuning.svg"}
    assert drawn == recorded | {f"{plot.name}.svg" for plot in plots.PLOTS}


@pytest.mark.parametrize(
    ("cell", "value"),
    [("14.4 us", 14.4), ("26.8-33.5 ms", 26800.0), ("**0.84**", 0.84), ("1,153", 1153.0)],
)
def test_a_cell_is_read_as_its_first_number(plots: ModuleType, cell: str, value: float) -> None:
    assert plots.number(cell) == value


def test_a_cell_without_a_number_cannot_be_drawn(plots: ModuleType) -> None:
    with pytest.raises(ValueError, match="a cell to draw must have a number, not '-'"):
        plots.number("-")
