"""The command line that all benchmarks share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options that a benchmark was called with."""

    quick: bool
    """Whether to run fewer rounds, within 50 seconds on two cores; the figures are rougher."""

    json: bool
    """Whether to print one JSON object instead of tables."""

    part: str | None = None
    """The only part to run; None runs all parts."""

    contestants: tuple[str, ...] = ()
    """The only contestants to measure; an empty tuple stands for all contestants."""


def parse(
    description: str,
    arguments: Sequence[str] | None = None,
    *,
    parts: Sequence[str] = (),
    contestants: Sequence[str] = (),
) -> Options:
    """Parse `arguments`, or the process's own if None; a wrong argument ends the process.

    `parts` are the names of the parts that can be run alone. `contestants` are the names of the
    contestants that can be measured alone.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--quick", action="store_true", help="run few rounds, under 50 s on two cores"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    if parts:
        parser.add_argument("--part", choices=parts, help="run this part only")
    if contestants:
        parser.add_argument(
            "--contestant",
            action="append",
            choices=contestants,
            default=[],
            help="run this contestant only; may be repeated",
        )
    known = parser.parse_args(arguments)
    return Options(
        quick=known.quick,
        json=known.json,
        part=known.part if parts else None,
        contestants=tuple(known.contestant) if contestants else (),
    )
