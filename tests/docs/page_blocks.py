"""The fenced blocks of a page: the files and commands that a reader takes from the page.

    ```python title="train.py"     a file of this name
    ```sh                          commands, which tests execute as they are
    ```text title="output"         lines that the commands before it print; "…" stands for anything
    ```text title="measured"       the same, with figures of one run: they stand for any figures

A comment before a block of commands says how the block is tested, unless every test run does it:

    <!-- test: slow -->                          in `make test-full` only
    <!-- test: slow root -->                     in `make test-full` as root: the block makes a lab
    <!-- test: slow verilator -->                in `make test-full` if circuits can be simulated
    <!-- test: elsewhere PATH: the reason -->    by the tests at PATH, which do the same
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").glob("*/*.md"),
    ]
)
NEEDS = ("root", "verilator")

_FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?$")
_TEST = re.compile(r"^<!-- test: (.+) -->$")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    page: str
    """The page's path within the repository."""
    line: int
    language: str
    title: str
    body: str
    test: str
    """The words of the comment before the block; "" if there is no comment."""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> bool:
        return self.language == "sh"

    @property
    def elsewhere(self) -> str:
        """Return the path of the tests of the commands; "" if the block itself is executed."""
        path, separator, _ = self.test.removeprefix("elsewhere ").partition(": ")
        return path if separator and self.test.startswith("elsewhere ") else ""

    @property
    def slow(self) -> bool:
        return self.test.split()[:1] == ["slow"]

    @property
    def need(self) -> str:
        """Return the requirement of the block: one of NEEDS, or ""."""
        words = self.test.split()
        return words[1] if self.slow and len(words) > 1 else ""


def blocks(page: Path) -> Iterator[Block]:
    """Yield the page's blocks in order; raise ValueError for a fence that does not end."""
    name = str(page.relative_to(ROOT))
    lines = iter(enumerate(page.read_text().splitlines(), 1))
    before = ""
    for number, line in lines:
        if line.startswith("```"):
            opening = _FENCE.match(line)
            if opening is None:
                raise ValueError(f"{name}:{number}: a fence cannot begin with {line!r}")
            body = []
            for _, inner in lines:
                if inner == "```":
                    break
                body.append(inner + "\n")
            else:
                raise ValueError(f"{name}:{number}: the fence does not end")
            test = _TEST.match(before)
            yield Block(
                page=name,
                line=number,
                language=opening[1],
                title=opening[2] or "",
                body="".join(body),
                test=test[1] if test else "",
            )
        before = line
