"""The command line that all benchmarks share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType


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

    measured: tuple[Path, ...] = ()
    """Files with the JSON of earlier runs, whose measurements take the place of new ones."""

    switches: frozenset[str] = frozenset()
    """The names of the benchmark's own switches that were given."""

    values: Mapping[str, str] = field(default_factory=dict)
    """The values of the benchmark's own options that were given, by name."""

    out: Path | None = None
    """The folder for what the benchmark writes; None if none was given."""


def parse(
    description: str,
    arguments: Sequence[str] | None = None,
    *,
    parts: Sequence[str] = (),
    contestants: Sequence[str] = (),
    takes_measured: bool = False,
    switches: Mapping[str, str] = MappingProxyType({}),
    values: Mapping[str, str] = MappingProxyType({}),
    writes: str = "",
) -> Options:
    """Parse `arguments`, or the process's own if None; a wrong argument ends the process.

    `parts` are the names of the parts that can be run alone. `contestants` are the names of the
    contestants that can be measured alone. With `takes_measured`, files of earlier runs
    can be given in place of new measurements. `switches` are the benchmark's own, with their help
    texts, and `values` its options with a value; `writes` is the help text of the option --out, if
    it is not empty.
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
    if takes_measured:
        parser.add_argument(
            "--measured",
            action="append",
            type=Path,
            metavar="FILE",
            default=[],
            help="take the measurements of this file, the JSON of an earlier run; may be repeated",
        )
    for name, text in switches.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    for name, text in values.items():
        parser.add_argument(f"--{name}", help=text)
    if writes:
        parser.add_argument("--out", type=Path, metavar="FOLDER", help=writes)
    known = parser.parse_args(arguments)
    return Options(
        quick=known.quick,
        json=known.json,
        part=known.part if parts else None,
        contestants=tuple(known.contestant) if contestants else (),
        measured=tuple(known.measured) if takes_measured else (),
        switches=frozenset(name for name in switches if getattr(known, name)),
        values={name: given for name in values if (given := getattr(known, name)) is not None},
        out=known.out if writes else None,
    )
