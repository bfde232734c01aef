"""Measure what it costs to watch a job: processor time a second and memory, by view.

The records of many ranks are written as fast as they can be read, with the times of an hour. A view
does at each simulated time what it would do at this time, and its own processor time is counted.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _harness.machine import describe_machine
from _harness.options import parse
from _harness.report import Report, Row, Target
from rich.table import Table

from slackline.causes import Watch
from slackline.history import Job
from slackline.records import (
    SCHEMA_VERSION,
    ClockOffset,
    FileHeader,
    GroupOpened,
    LinkReport,
    Operation,
    Operations,
    Record,
    StepSummary,
    encode,
    file_of,
)
from slackline.views import search_seldom
from slackline.views.page import Panels
from slackline.views.terminal import screen_of, view_of

S, MS = 10**9, 10**6
START_NS = 1_800_000_000 * S
RANKS = 64
STRIDES = (1, 2, 8)
"""A rank has wires to the ranks that are so much further, and to those that have so much less."""
STEPS, BATCHES, OPERATIONS = 5, 4, 8
"""Steps a second, batches of operations a second, and operations in a batch."""
LOOKS = 7
"""The number of times that a view reads the files in a second."""
VIEWS = ("top", "page")
MOST_PERCENT = 2.0
MOST_GROWTH = 1.1


@dataclass(frozen=True)
class Lengths:
    """The simulated time, in seconds, and the time after which the memory is noted first."""

    seconds: int
    early: int


FULL, QUICK = Lengths(3600, 600), Lengths(60, 20)


def opening(rank: int) -> list[Record]:
    """Return the first records of a rank."""
    members = tuple(range(RANKS))
    header = FileHeader(
        version=SCHEMA_VERSION,
        rank=rank,
        time_ns=START_NS,
        monotonic_ns=0,
        host=f"host{rank}",
        clock=f"clock {rank}",
        process=1000 + rank,
    )
    opened = GroupOpened(rank=rank, time_ns=START_NS, size=RANKS, epoch=1, members=members)
    return [header, opened]


def second_of(rank: int, second: int) -> Iterator[tuple[int, Record]]:
    """Yield the records of a rank in one second, each with its quarter of the second."""
    base_ns = second * S
    for number in range(STEPS):
        time_ns = START_NS + base_ns + (number + 1) * S // STEPS
        yield (
            number * 4 // STEPS,
            StepSummary(
                rank=rank,
                step=second * STEPS + number,
                time_ns=time_ns,
                wall_ns=S // STEPS,
                exposed_ns=20 * MS,
                forward_ns=40 * MS,
                backward_ns=80 * MS,
                reduced_bytes=10**6,
                parameters=48,
                waited=2,
            ),
        )
    for quarter in range(BATCHES):
        end_ns = base_ns + (quarter + 1) * S // BATCHES
        rows = []
        for number in range(OPERATIONS):
            ended_ns = end_ns - (OPERATIONS - number) * 20 * MS
            tag = (second * BATCHES + quarter) * OPERATIONS + number
            times_ns = ended_ns - 9 * MS, ended_ns - 8 * MS, ended_ns, MS
            rows.append(Operation(1, 0, -1, 1 << 20, 1, 1, tag, tag, 0, 2, 1, *times_ns, 0))
        yield quarter, Operations(rank=rank, lost=0, rows=tuple(rows))
    for stride in STRIDES:
        for peer in ((rank + stride) % RANKS, (rank - stride) % RANKS):
            yield (
                0,
                LinkReport(
                    rank=rank,
                    peer=peer,
                    rail=0,
                    kind="tcp",
                    at_ns=base_ns,
                    interval_ns=S,
                    sent_bytes=10**7,
                    received_bytes=10**7,
                    packets=7000,
                    resent=1,
                    round_trip_ns=200_000,
                    queued_bytes=0,
                    unconfirmed_bytes=0,
                    state="up",
                    outward=f"link {rank}>{peer} is well: 0.1 ms one way as usual",
                    inward=f"link {peer}>{rank} is well: 0.1 ms one way as usual",
                    confirmed_bytes=10**7,
                    busy_ns=500 * MS,
                    least_round_trip_ns=150_000,
                ),
            )
            yield (
                0,
                ClockOffset(rank=rank, peer=peer, at_ns=base_ns, offset_ns=0, error_ns=100_000),
            )


def drawing(view: str, watch: Watch) -> Callable[[int], object]:
    """Return the function with which a view shows the job at a Unix time."""
    if view == "top":
        return lambda now_ns: screen_of(view_of(watch, now_ns), 160, 50)
    panels = Panels(watch)
    return lambda now_ns: panels.texts()


def watched(view: str, lengths: Lengths) -> dict[str, float]:
    """Watch the job with a view, and return its processor time and memory."""
    search_seldom()
    with tempfile.TemporaryDirectory(prefix="slackline-watch-") as folder:
        directory = Path(folder)
        files = [file_of(directory, rank).open("a") for rank in range(RANKS)]
        for rank, file in enumerate(files):
            file.writelines(f"{encode(each)}\n" for each in opening(rank))
            file.flush()
        watch = Watch(Job(directory))
        show = drawing(view, watch)
        spent_s, early_mib = 0.0, 0.0
        for second in range(lengths.seconds):
            quarters: list[list[list[str]]] = [[[] for _ in files] for _ in range(4)]
            for rank in range(RANKS):
                for quarter, record in second_of(rank, second):
                    quarters[quarter][rank].append(f"{encode(record)}\n")
            for look in range(LOOKS):
                now_ns = START_NS + second * S + (look + 1) * S // LOOKS
                if look < 4:
                    for file, lines in zip(files, quarters[look], strict=True):
                        file.writelines(lines)
                        file.flush()
                began_s = time.process_time()
                watch.update(now_ns)
                if look == LOOKS - 1:
                    show(now_ns)
                spent_s += time.process_time() - began_s
            if second + 1 == lengths.early:
                early_mib = resident_mib()
        for file in files:
            file.close()
        late_mib = resident_mib()
        assert not watch.spells, watch.spells
    return {
        "percent_of_a_core": round(100 * spent_s / lengths.seconds, 2),
        "early_mib": round(early_mib, 1),
        "late_mib": round(late_mib, 1),
    }


def resident_mib() -> float:
    """Return the memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> None:
    options = parse("the cost of watching a job of 64 ranks")
    machine = describe_machine()
    lengths = QUICK if options.quick else FULL
    rows, targets = [], []
    for view in VIEWS:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            found = pool.submit(watched, view, lengths).result()
        labels = {"view": view, "ranks": RANKS, "simulated_s": lengths.seconds}
        rows.append(Row(labels=labels, values=dict(found)))
        targets += [
            Target(
                name=f"{view}: percent of a core",
                target=MOST_PERCENT,
                measured=found["percent_of_a_core"],
                bound="at most",
            ),
            Target(
                name=f"{view}: memory at the end over memory early",
                target=MOST_GROWTH,
                measured=round(found["late_mib"] / found["early_mib"], 2),
                bound="at most",
            ),
        ]
    keys = list(rows[0].as_json())
    table = Table(*(key.replace("_", " ") for key in keys), title="watching a job")
    for row in rows:
        table.add_row(*(str(value) for value in row.as_json().values()))
    Report(machine=machine, rows=rows, targets=targets).print([table], options)


if __name__ == "__main__":
    main()
