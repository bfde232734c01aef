"""Plant faults that this project had into the engine, and count the schedules until each is found.

    python native/tests/simulation/planted.py [NAME ...] [--schedules 12000] [--rotate N]

A patch of the folder `planted` is one fault; its first line says what it does. Drawn schedules
find it, and for those in its folder `rare`, which would need too many, a schedule of found.txt
does. The sources are copied to build/planted, so that the tree stays as it is. The exit status is 1
if a fault is not found.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
WORK = ROOT / "build" / "planted"
TREE, BUILD = WORK / "tree", WORK / "build"
MOST_SCHEDULES = 12_000
MOST_SECONDS = 600
_BROKEN = r"^seed \d+, schedule (\d+): (.*)$"


@dataclass(frozen=True)
class Found:
    """The result for one planted fault."""

    name: str
    schedules: int | None
    """The number of drawn schedules until a law was broken; None if none was."""
    law: str
    """The law that was broken, by a drawn schedule or a kept one; empty if none was."""


def patches() -> dict[str, Path]:
    """Return the patches by the names of their faults."""
    return {path.stem: path for path in sorted((HERE / "planted").rglob("*.patch"))}


def rotated(names: list[str], count: int) -> list[str]:
    """Return `count` names; each commit has others."""
    commit = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    start = int(commit) * count % len(names)
    return [names[(start + i) % len(names)] for i in range(count)]


def plant(name: str, path: Path, *, schedules: int, first: int) -> Found:
    """Build the engine with the fault and play schedules until a law is broken.

    They are drawn for most faults, for rare ones those of found.txt.
    """
    _copy_sources()
    _run(["patch", "--quiet", "-p1", "--no-backup-if-mismatch", "-i", str(path)], cwd=TREE)
    _build()
    rare = path.parent.name == "rare"
    drawn = ["--first", str(first), "--count", str(schedules), "--seconds", str(MOST_SECONDS)]
    options = ["--replay", str(HERE / "found.txt")] if rare else drawn
    program = str(BUILD / "slackline_simulation")
    done = subprocess.run(
        [program, *options], capture_output=True, text=True, timeout=MOST_SECONDS + 60
    )
    broken = re.search(_BROKEN, done.stdout, re.MULTILINE)
    if broken is None:
        return Found(name, None, "")
    return Found(name, None if rare else int(broken[1]), broken[2])


def _copy_sources() -> None:
    """Copy the sources that differ, so that only what a patch changes is compiled again."""
    for source in [ROOT / "CMakeLists.txt", *sorted((ROOT / "native").rglob("*"))]:
        target = TREE / source.relative_to(ROOT)
        if source.is_dir() or "__pycache__" in source.parts:
            continue
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def _build() -> None:
    if not (BUILD / "build.ninja").exists():
        options = ["-G", "Ninja", "-DSLACKLINE_NATIVE_TESTS=ON", "--log-level=WARNING"]
        _run(["cmake", "-S", str(TREE), "-B", str(BUILD), *options], cwd=ROOT)
    _run(["cmake", "--build", str(BUILD), "--target", "slackline_simulation"], cwd=ROOT)


def _run(command: list[str], *, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def main() -> None:
    """Plant the faults that the command line names, and print when each is found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a fault; all that are found")
    parser.add_argument("--schedules", type=int, default=MOST_SCHEDULES, help="the most to play")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--rotate", type=int, help="as many faults, others with each commit")
    given = parser.parse_args()
    known = patches()
    unknown = [name for name in given.names if name not in known]
    if unknown:
        parser.error(f"no fault {unknown[0]!r}; there are {', '.join(known)}")
    every = list(known)
    names = given.names or (rotated(every, given.rotate) if given.rotate else every)
    missed = 0
    for name in names:
        result = plant(name, known[name], schedules=given.schedules, first=given.first)
        missed += not result.law
        by = "by a kept schedule" if result.schedules is None else f"after {result.schedules}"
        print(f"{name}: {by if result.law else 'not found'}: {result.law[:160]}", flush=True)
    print(f"{len(names) - missed} of {len(names)} faults found")
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
