"""Long runs of generated cases, in pieces that follow each other: `make campaign NAME=models`.

A piece begins at the seed after the last one that the records of the same commit have, or of the
same version of the folder on which the cases depend alone. It ends after PIECE or with the
campaign's last seed, and appends a line of JSON to benchmarks/campaigns/NAME.jsonl. The exit status
is 1 if a case has failed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _harness.machine import commit, describe_machine, version

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
PIECE = timedelta(minutes=18)
"""The time after which a piece takes no further cases; the last ones end within 20 minutes."""


class Cases(Protocol):
    """The cases of a campaign, each made from a seed."""

    total: int
    """The number of cases of the whole campaign."""
    at_once: int
    """The number of cases that are run together."""
    folder: str | None
    """The folder of the checkout on which the cases depend alone; None for the whole checkout."""
    without: Sequence[str]
    """Paths of this folder on which the cases do not depend."""

    def run(self, seeds: Sequence[int]) -> dict[int, str]:
        """Run the cases; return a sentence for each seed that has failed."""

    def report(self, seed: int) -> str:
        """Run the case of a seed; return a text about the case, with a smaller one if it fails."""


class Models:
    """Models and loops in pipelines, compared with one process: tests/support/model_cases."""

    total = 20_000
    at_once = 100
    folder = None
    without = ()

    def __init__(self, jobs: Any) -> None:
        from drawn_ranks import train_in_job

        self._train = lambda cases: train_in_job(jobs, cases)

    def run(self, seeds: Sequence[int]) -> dict[int, str]:
        from model_cases.draw import draw_case

        found = self._train([draw_case(seed) for seed in seeds])
        return {seed: said for seed, said in zip(seeds, found, strict=True) if said}

    def report(self, seed: int) -> str:
        from model_cases.draw import draw_case, draw_replicas
        from model_cases.failures import report

        case = draw_case(seed) if seed >= 0 else draw_replicas(-1 - seed)
        (said,) = self._train([case])
        if not said:
            return f"seed {seed} is right\n{case}"
        return report(case, said, self._train, timedelta(minutes=3))


class SlowFromTheStart:
    """Training jobs on labs that are slow before the job begins: benchmarks/diagnosis/start.py."""

    total = 200
    at_once = 1
    folder = None
    without = ()

    def run(self, seeds: Sequence[int]) -> dict[int, str]:
        import start

        found = {seed: start.judged(case, start.run(case)) for seed, case in self._drawn(seeds)}
        return {seed: said for seed, said in found.items() if said}

    def report(self, seed: int) -> str:
        import start

        ((_, case),) = self._drawn([seed])
        named = start.run(case)
        said = start.judged(case, named)
        found = "\n".join(spell.cause.sentence for spell in named.spells)
        return f"{said}\n{found}" if said else f"seed {seed} is right\n{case}\n{found}"

    def _drawn(self, seeds: Sequence[int]) -> list[tuple[int, Any]]:
        from start import draw

        return [(seed, draw(seed)) for seed in seeds]


class OneHash:
    """Trainings whose hash must not depend on ranks, rails and faults: benchmarks/one-hash."""

    at_once = 6
    folder = None
    without = ()

    def __init__(self) -> None:
        import drawn

        self.total = drawn.TOTAL
        self._judged = drawn.judged

    def run(self, seeds: Sequence[int]) -> dict[int, str]:
        return {seed: said for seed in seeds if (said := self._judged(seed))}

    def report(self, seed: int) -> str:
        return self._judged(seed) or f"seed {seed} is right\n"


class Simulation:
    """Whole engines in simulated time, through drawn schedules: native/tests/simulation."""

    total = 2_000_000
    at_once = 20_000
    folder = "native"
    without = tuple(
        f"native/{each}"
        for each in (
            *("bindings", "fuzz", "tests/allocation", "tests/model"),
            *("tests/simulation/found.txt", "tests/simulation/planted"),
            "tests/simulation/planted.py",
        )
    )
    _MOST_FAILURES = 100

    def __init__(self) -> None:
        build = ROOT / "build" / "extension"
        self._program = build / "slackline_simulation"
        command = ["cmake", "--build", str(build), "--target", self._program.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def run(self, seeds: Sequence[int]) -> dict[int, str]:
        half = len(seeds) // 2
        parts = [part for part in (seeds[:half], seeds[half:]) if part]
        with ThreadPoolExecutor(len(parts)) as threads:
            texts = list(threads.map(self._play, parts))
        found = [re.findall(r"^seed (\d+), schedule \d+: (.*)$", text, re.M) for text in texts]
        return {int(seed): law for part in found for seed, law in part}

    def report(self, seed: int) -> str:
        text = self._play([seed], "--story", "--shrink")
        return f"seed {seed} is right\n{text}" if " 0 laws broken" in text else text

    def _play(self, seeds: Sequence[int], *options: str) -> str:
        drawn = ["--first", str(seeds[0]), "--count", str(len(seeds))]
        command = [str(self._program), *drawn, "--most", str(self._MOST_FAILURES), *options]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode not in (0, 1):
            return f"seed {seeds[0]}, schedule 1: the program ended with {done.returncode}\n"
        crashed = re.search(r"^seed (\d+), schedule \d+: the program crashes", done.stdout, re.M)
        if crashed is None or int(crashed[1]) == seeds[-1]:
            return done.stdout
        return done.stdout + self._play(range(int(crashed[1]) + 1, seeds[-1] + 1), *options)


@contextmanager
def opened(name: str) -> Iterator[Cases]:
    """Provide the cases of a campaign, with the processes that run them."""
    if name == "slow-from-the-start":
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "diagnosis"))
        yield SlowFromTheStart()
        return
    if name == "one-hash":
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "one-hash"))
        yield OneHash()
        return
    if name == "simulation":
        yield Simulation()
        return
    for folder in ("multiproc/pipeline", "multiproc", "support"):
        sys.path.insert(0, str(TESTS / folder))
    from rank_jobs import ForkServer, Jobs

    with ForkServer() as server:
        jobs = Jobs(server.address)
        try:
            yield Models(jobs)
        finally:
            jobs.close()


NAMES = ("models", "one-hash", "simulation", "slow-from-the-start")


@dataclass(frozen=True, kw_only=True)
class Record:
    """A piece of a campaign, as a line of its file."""

    name: str
    commit: str
    machine: dict[str, Any]
    began: str
    seconds: float
    first: int
    count: int
    failed: dict[str, str]
    """A sentence for each seed that has failed."""
    version: str = ""
    """The commit, or the version of the folder on which the cases depend alone."""


def file_of(name: str) -> Path:
    """Return the file with the records of a campaign."""
    return Path(__file__).with_name(f"{name}.jsonl")


def records_of(name: str) -> list[Record]:
    """Return the records of a campaign, the oldest first."""
    path = file_of(name)
    lines = path.read_text().splitlines() if path.exists() else []
    return [Record(**json.loads(line)) for line in lines]


def version_of(name: str, cases: Cases) -> str:
    """Return the version of what the cases depend on, equal as long as nothing of it changes."""
    if cases.folder is None:
        return commit(apart_from=file_of(name))
    return version(cases.folder, without=cases.without)


def next_seed(records: Sequence[Record], here: str) -> int:
    """Return the first seed that the records of the version `here` have not covered."""
    covered = (each for each in records if (each.version or each.commit) == here)
    return max((each.first + each.count for each in covered), default=0)


def run_piece(name: str, cases: Cases, first: int, limit: timedelta = PIECE) -> Record:
    """Run a piece from the seed `first` on, and return its record."""
    began, unix = time.monotonic(), datetime.now(UTC)
    machine, here = describe_machine(), commit(apart_from=file_of(name))
    failed: dict[int, str] = {}
    seed = first
    while seed < cases.total and time.monotonic() - began < limit.total_seconds():
        seeds = range(seed, min(seed + cases.at_once, cases.total))
        failed |= cases.run(seeds)
        seed = seeds.stop
    return Record(
        name=name,
        commit=here,
        machine=machine,
        began=unix.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - began, 1),
        first=first,
        count=seed - first,
        failed={str(number): " ".join(said.split()) for number, said in failed.items()},
        version=version_of(name, cases),
    )


def append(record: Record) -> None:
    """Append a record to the file of its campaign."""
    with file_of(record.name).open("a") as lines:
        lines.write(json.dumps(asdict(record)) + "\n")


def summary(records: Sequence[Record]) -> str:
    """Return the sum of a campaign's records, a line for each version, and the failed seeds."""
    lines = []
    for here in dict.fromkeys(each.version or each.commit for each in records):
        same = [each for each in records if (each.version or each.commit) == here]
        count = sum(each.count for each in same)
        seconds = sum(each.seconds for each in same)
        failed = {seed: said for each in same for seed, said in each.failed.items()}
        lines.append(
            f"{here}: {count} cases in {len(same)} pieces, {seconds:.0f} s, {len(failed)} failed"
        )
        lines += [f"  seed {seed}: {said}" for seed, said in failed.items()]
    return "\n".join(lines) or "no piece has been run"


def main() -> int:
    """Run pieces of a campaign, or show its records, or repeat seeds; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--pieces", type=int, help="how many pieces to run; all that are left")
    parser.add_argument("--minutes", type=float, help="the time of a piece, 18 at most")
    parser.add_argument("--show", action="store_true", help="print the sum of all records")
    parser.add_argument("--seeds", type=int, nargs="+", help="run these seeds alone, and tell")
    options = parser.parse_args()
    limit = PIECE if options.minutes is None else min(PIECE, timedelta(minutes=options.minutes))
    records = records_of(options.name)
    if options.show:
        print(summary(records))
        return int(any(each.failed for each in records))
    with opened(options.name) as cases:
        if options.seeds:
            texts = [cases.report(seed) for seed in options.seeds]
            print("\n".join(texts))
            return int(not all(" is right\n" in text for text in texts))
        done: list[Record] = []
        first = next_seed(records, version_of(options.name, cases))
        while first < cases.total and (options.pieces is None or len(done) < options.pieces):
            record = run_piece(options.name, cases, first, limit)
            append(record)
            done.append(record)
            first = record.first + record.count
            print(summary([record]), flush=True)
    return int(any(each.failed for each in done))


if __name__ == "__main__":
    sys.exit(main())
