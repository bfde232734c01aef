"""Plant faults that this project had into the engine, and count the schedules until each is found.

    python native/tests/simulation/planted.py [NAME ...] [--schedules 12000] [--rotate N]

A patch of the folder `planted` is one fault; its first line says what it does. The sources are
copied to build/planted, so that the tree stays as it is. The exit status is 1 if a fault is not
found.
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
    what: str
    schedules: int | None
    """The number of schedules until a law was broken; None if none was."""
    law: str


def patches() -> dict[str, Path]:
    """Return the patches by the names of their faults."""
    return {path.stem: path for path in sorted((HERE / "planted").glob("*.patch"))}


def rotated(names: list[str], count: int) -> list[str]:
    """Return `count` names; each commit has others."""
    commit = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    start = int(commit) * count % len(names)
    return [names[(start + i) % len(names)] for i in range(count)]


def plant(name: str, path: Path, *, schedules: int, first: int) -> Found:
    """Build the engine with the fault and play drawn schedules until a law is broken."""
    _copy_sources()
    _run(["patch", "--quiet", "-p1", "--no-backup-if-mismatch", "-i", str(path)], cwd=TREE)
    _build()
    program = BUILD / "slackline_simulation"
    options = ["--first", str(first), "--count", str(schedules), "--seconds", str(MOST_SECONDS)]
    done = subprocess.run(
        [str(program), *options], capture_output=True, text=True, timeout=MOST_SECONDS + 60
    )
    what = path.read_text().split("\n\n", 1)[0].replace("\n", " ")
    broken = re.search(_BROKEN, done.stdout, re.MULTILINE)
    if broken is not None:
        return Found(name, what, int(broken[1]), broken[2])
    replayed = [str(program), "--replay", str(HERE / "found.txt")]
    done = subprocess.run(replayed, capture_output=True, text=True, timeout=60)
    kept = re.search(_BROKEN, done.stdout, re.MULTILINE)
    return Found(name, what, None, "" if kept is None else f"by a kept schedule: {kept[2]}")


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
        missed += result.schedules is None
        after = "not found" if result.schedules is None else f"after {result.schedules}"
        print(f"{name}: {after}: {result.law[:160]}", flush=True)
    print(f"{len(names) - missed} of {len(names)} faults found within {given.schedules} schedules")
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
