"""A parser of the output of `slackline circuit report`, and a comparison of two such outputs."""

import re
from collections.abc import Collection

ALLOWED = 0.05
"""The smallest relative growth of a figure that counts as a failure."""

_ROW = re.compile(r"(.+?)\s{2,}(\w+)\s{2,}([\d ]+)")
_LEVELS = "  levels of logic in its stages: "


def numbers(report: str) -> dict[str, int]:
    """Return every figure of a report by its circuit, family and kind."""
    found: dict[str, int] = {}
    row, kinds = "", report.splitlines()[1].split()[2:]
    for line in report.splitlines()[2:]:
        if line.startswith(_LEVELS):
            levels = map(int, line.removeprefix(_LEVELS).split())
            found |= {f"{row}, levels in stage {k}": each for k, each in enumerate(levels)}
        elif (match := _ROW.fullmatch(line)) is not None:
            row = f"{match[1]}, {match[2]}"
            counts = map(int, match[3].split())
            found |= {f"{row}, {kind}": n for kind, n in zip(kinds, counts, strict=True)}
    return found


def grown(before: str, now: str, families: Collection[str] | None = None) -> list[str]:
    """Return a sentence for each figure that has grown by as much as ALLOWED, or is not in both.

    With `families`, the figures of other families may be missing.
    """
    old, new = numbers(before), numbers(now)
    if families is not None:
        old = {name: n for name, n in old.items() if _family(name) in families}
    told = [f"{name} is in one of them only" for name in sorted(old.keys() ^ new.keys())]
    return told + [
        f"{name}: {old[name]} became {new[name]}"
        for name in sorted(old.keys() & new.keys())
        if new[name] > old[name] and new[name] >= (1 + ALLOWED) * old[name]
    ]


def _family(name: str) -> str:
    return name.split(", ")[-2]  # a circuit's name may have a comma, too
