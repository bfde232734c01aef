"""A replay of a recorded run with slow links and a dead NIC, at a tenth of its length.

The events are those of the large-scale run of Adaptra's authors (arXiv 2504.19232): 1,200
iterations, with slow phases of 70 iterations each and a NIC that fails at the end. Here the
iterations of a phase follow each other without a pause, delays change between phases, and a NIC's
cable is pulled in the middle of an iteration.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from _harness.ranks import LabRanks
from _harness.recorded_run import EVENTS, ITERATIONS, LASTS, NIC_FAILS
from cases import LARGE, MS, Case

from slackline.faults import parse_all
from slackline.lab import Lab

SCALE = 10
"""The ratio of recorded iterations to replayed iterations."""
FAILING_HOST = 4
FAILS_AFTER_MS = 400
"""The time from the start of the last phase to the NIC's failure, within an iteration."""
LEAD_MS = 40


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of the replayed run: iterations under the same network conditions."""

    case: Case
    iterations: int
    nic_fails: bool = False

    def __str__(self) -> str:
        return "a NIC fails" if self.nic_fails else f"{self.case.where} {self.case.delay_ms} ms"


def phases(scale: int = SCALE) -> list[Phase]:
    """Return the phases of the whole run in order."""
    found, now = [], 0
    for at, links, ms in EVENTS:
        found.append(_phase((), 0, (at - now) / scale))
        found.append(_phase(links, ms, LASTS / scale))
        now = at + LASTS
    found.append(_phase((), 0, (NIC_FAILS - now) / scale))
    last = _phase((), 0, (ITERATIONS - NIC_FAILS) / scale)
    found.append(Phase(case=last.case, iterations=last.iterations, nic_fails=True))
    return found


def _phase(links: Sequence[int], ms: int, iterations: float) -> Phase:
    where = "links " + ", ".join(map(str, links)) if links else "healthy"
    delays = tuple((link, ms) for link in links)
    case = Case(part="trace", shape=LARGE, where=where, delays_ms=delays)
    return Phase(case=case, iterations=max(1, round(iterations)))


def run(lab: Lab, ranks: LabRanks, name: str, *, nic_fails: bool) -> list[float]:
    """Replay all phases with one contestant, and return the seconds of each phase.

    Without `nic_fails` the last event, the failure of a NIC, is left out.
    """
    found = []
    for phase in phases():
        print(f"trace, {name}: {phase.iterations} iterations, {phase}", file=sys.stderr)
        faults = phase.case.faults(0)
        if phase.nic_fails and nic_fails:
            faults.append(f"nic {FAILING_HOST}.0 down from {LEAD_MS + FAILS_AFTER_MS}ms")
        with lab.inject(parse_all(faults), started=False) as injection:
            start_ns = time.monotonic_ns() + LEAD_MS * MS
            injection.start()
            answers = ranks.ask("train", phase.iterations, start_ns)
        began = min(start for start, _ in answers)
        ended = max(ends[-1] for _, ends in answers)
        found.append((ended - began) / 1e9)
    return found


def restart_seconds(start: Callable[[], LabRanks], name: str) -> float:
    """Return the seconds from a restart of all ranks until their first iteration has ended.

    The time covers processes, imports, groups, and the iteration in which a schedule exchanges
    shapes. In favour of a contestant that restarts, the time does not include the detection of the
    failure, the loading of a checkpoint, and the repetition of iterations since the checkpoint.
    """
    began = time.monotonic()
    with start() as ranks:
        ranks.ask("prepare", LARGE, name)
        ranks.ask("train", 1, time.monotonic_ns())
        took = time.monotonic() - began
        ranks.ask("close")
    return took
