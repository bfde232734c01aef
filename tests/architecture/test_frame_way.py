"""The picture of the way of a frame in docs/design.md names the functions that the code has."""

import re
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_HOPS = 10
HOP = re.compile(r"^(?: rank \d)? +(\d+) (\w+)::(\w+) +(\w+\.cc) +\S")
CALLS = re.compile(r"^ +│ ([a-z_]+(?:, [a-z_]+)*)")
DEFINITION = re.compile(r"^(?:[\w:<>*&]+ )*?[*&]?(\w+)::(\w+)\(")


def picture() -> list[str]:
    """Return the lines of the picture in the section about the way of a frame."""
    section = (ROOT / "docs/design.md").read_text().split("## The way of a frame\n")[1]
    return section.split("```\n")[1].splitlines()


def bodies() -> dict[str, dict[str, str]]:
    """Return the text of each method, with its signature, by file name and by "Class::method"."""
    found: dict[str, dict[str, str]] = {}
    for folder in ("engine", "rail"):
        for path in sorted((ROOT / "native/src" / folder).glob("*.cc")):
            methods, name = found.setdefault(path.name, {}), ""
            for line in path.read_text().splitlines():
                if match := DEFINITION.match(line):
                    name = "::".join(match.groups())
                if name:
                    methods[name] = methods.get(name, "") + line + "\n"
                if line.startswith("}") or (match and line.endswith("}")):
                    name = ""
    return found


def test_the_way_of_a_frame_has_at_most_ten_hops_and_each_calls_the_next() -> None:
    """Check each call in the picture; a hop without a call to the next one is a queue or a wire."""
    methods = bodies()
    by_name: dict[str, str] = {}
    for name, text in (each for file in methods.values() for each in file.items()):
        method = name.split("::")[1]
        by_name[method] = by_name.get(method, "") + text
    hops: list[str] = []
    steps: list[list[str]] = []
    for line in picture():
        if match := HOP.match(line):
            number, owner, method, file = match.groups()
            assert f"{owner}::{method}" in methods[file], line
            by_name[method] = methods[file][f"{owner}::{method}"]
            hops.append(method)
            assert int(number) == len(hops)
        elif match := CALLS.match(line):
            steps.append([hops[-1], *match[1].split(", ")])
        else:
            assert line.strip() == "┆"
            steps.append([])
    assert len(hops) == MOST_HOPS
    assert len(steps) == len(hops) - 1
    for through, after in zip(steps, hops[1:], strict=True):
        for caller, called in pairwise([*through, after] if through else []):
            assert re.search(rf"\b{called}\(", by_name[caller]), f"{caller} does not call {called}"
