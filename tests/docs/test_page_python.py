"""Tests that each Python block of a page is complete, or continues the page's earlier blocks."""

import json
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest
from page_blocks import PAGES, ROOT, Block, blocks

pytestmark = pytest.mark.skipif(find_spec("ruff") is None, reason="needs slackline-torch[dev]")

PAGES_OF_PYTHON = {
    page: found
    for page in PAGES
    if (found := [block for block in blocks(page) if block.language == "python"])
}


def undefined(texts: dict[str, list[str]], folder: Path) -> dict[str, list[str]]:
    """Return the undefined names of each page's blocks, as "name in block 2".

    `texts` has the blocks of each page in order; a block may use names of the blocks before it.
    """
    ends: dict[str, list[int]] = {}
    for number, parts in enumerate(texts.values()):
        (folder / f"page{number}.py").write_text("".join(parts))
        lengths = [part.count("\n") for part in parts]
        ends[f"page{number}.py"] = [sum(lengths[: at + 1]) for at in range(len(parts))]
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache"]
    command += ["--select", "F821", "--output-format", "json", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode in (0, 1), ended.stderr
    found: dict[str, list[str]] = {page: [] for page in texts}
    names = list(texts)
    for error in json.loads(ended.stdout):
        file = Path(error["filename"]).name
        assert error["code"] == "F821", error["message"]  # and no syntax error
        block = sum(end < error["location"]["row"] for end in ends[file])
        name = error["message"].removeprefix("Undefined name ").strip("`")
        found[names[int(file[4:-3])]].append(f"{name} in block {block}")
    return found


def test_a_name_without_an_origin_is_found_and_one_of_an_earlier_block_is_known(
    tmp_path: Path,
) -> None:
    first, second = "import torch\nx = torch.ones(2)\n", "print(x)\nprint(missing)\n"
    assert undefined({"a": [first, second], "b": [second]}, tmp_path) == {
        "a": ["missing in block 1"],
        "b": ["x in block 0", "missing in block 0"],
    }


def test_each_python_block_is_complete_or_continues_its_page(tmp_path: Path) -> None:
    texts = {
        str(page.relative_to(ROOT)): [textwrap.dedent(block.body) for block in found]
        for page, found in PAGES_OF_PYTHON.items()
    }
    wrong = {page: names for page, names in undefined(texts, tmp_path).items() if names}
    assert wrong == {}


@pytest.mark.parametrize(
    "block",
    [block for found in PAGES_OF_PYTHON.values() for block in found if block.title],
    ids=lambda block: block.place,
)
def test_a_python_block_that_is_a_file_is_complete_by_itself(block: Block, tmp_path: Path) -> None:
    assert undefined({block.place: [block.body]}, tmp_path) == {block.place: []}
