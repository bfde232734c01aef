"""Measure the collectives and a round trip of a message: slackline beside gloo, in turns."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _harness.machine import describe_machine
from _harness.options import parse
from _harness.ranks import Ranks
from _harness.report import Report, Row, Scalar, Target
from _harness.summary import Summary
from operations import OPERATIONS
from performer import Performer
from rich.table import Table

RANKS = 2
BACKENDS = ("slackline", "gloo")
GLOO_OVER_OURS = 1.0
"""The smallest allowed ratio of gloo's time to slackline's: no operation is slower than gloo's."""
ROUNDS, QUICK_ROUNDS = 41, 3
QUICK_CASE_SECONDS = 1.5
"""The time after which a quick run starts no further round: a busy machine gets fewer rounds."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A collective operation, or a round trip of a message, at one size."""

    operation: str
    nbytes: int
    calls: int
    warm_up: int

    @property
    def name(self) -> str:
        size = {0: "", 4096: ", 4 KiB", 1 << 20: ", 1 MiB"}[self.nbytes]
        return self.operation + size


def cases() -> list[Case]:
    """Return the cases: each operation at 4 KiB and 1 MiB; a barrier has no size."""
    sizes = {4096: 100, 1 << 20: 10}
    return [
        Case(operation=operation, nbytes=nbytes, calls=calls, warm_up=4)
        for operation in OPERATIONS
        for nbytes, calls in ({0: 100} if operation == "barrier" else sizes).items()
    ]


def play(group: Ranks, case: Case, *, quick: bool) -> dict[str, Summary]:
    """Measure one operation at one size by both backends, in reversed order every other round."""
    group.ask("prepare", case.operation, case.nbytes // 4)
    samples: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    started = time.monotonic()
    for number in range(QUICK_ROUNDS if quick else ROUNDS):
        if quick and number > 0 and time.monotonic() - started > QUICK_CASE_SECONDS:
            break
        for backend in BACKENDS if number % 2 == 0 else reversed(BACKENDS):
            samples[backend].append(max(group.ask("turn", backend, case.calls, case.warm_up)))
    return {backend: Summary.of_seconds(sample) for backend, sample in samples.items()}


def ratio(times: Mapping[str, Summary]) -> float:
    """Return gloo's median time over slackline's."""
    return round(times["gloo"].median_us / times["slackline"].median_us, 2)


def main() -> None:
    options = parse("latency of the collectives: slackline and gloo")
    machine = describe_machine()
    times: dict[Case, dict[str, Summary]] = {}
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with Ranks(Performer, RANKS, environment=environment) as group:
        for case in cases():
            times[case] = play(group, case, quick=options.quick)
        group.ask("close")

    rows, targets = [], []
    table = Table("operation", *BACKENDS, "gloo / slackline", title=f"{RANKS} ranks, time a call")
    for case, found in times.items():
        for backend, time_a_call in found.items():
            labels: dict[str, Scalar] = {
                "operation": case.operation,
                "ranks": RANKS,
                "bytes": case.nbytes,
                "contestant": backend,
            }
            rows.append(Row(labels=labels, values=time_a_call.values()))
        name = f"{RANKS} ranks, {case.name}: gloo over slackline"
        targets.append(Target(name=name, target=GLOO_OVER_OURS, measured=ratio(found)))
        table.add_row(case.name, *(str(found[b]) for b in BACKENDS), f"{ratio(found):.1f}x")
    Report(machine=machine, rows=rows, targets=targets).print([table], options)


if __name__ == "__main__":
    main()
