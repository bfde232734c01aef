"""Real training jobs on the hosts of a lab, with real faults, and their diagnosis."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from _harness.commands import SLACKLINE
from _harness.report import Row
from scenarios import RANKS

from slackline.causes import Kind, Spell, Watch

JOB = Path(__file__).with_name("job.py")
AT_S, SECONDS = 15, 30
"""The start of a fault and the length of a job, from the opening of its group."""
LIMIT_S = 240


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job with one fault or none, and the name that it must get."""

    kind: Kind | None
    name: str = ""
    fault: str = ""
    """A fault for `slackline run --fault`, without its start."""
    slow: str = "none"
    """The fault that the job's own script makes."""
    rank: int = 0
    nics: int = 1

    @property
    def command(self) -> list[str]:
        words = ["run", "--lab", "--hosts", str(RANKS), "--nics", str(self.nics), "--rate"]
        words += ["200Mbit"]
        for each in self.fault.split(";") if self.fault else []:
            words += ["--fault", f"{each.strip()} from {AT_S}s"]
        return words

    @property
    def script(self) -> list[str]:
        place = ["--fault", self.slow, "--rank", str(self.rank)]
        return [str(JOB), *place, "--at", str(AT_S), "--seconds", str(SECONDS)]


CASES = (
    Case(kind=None),
    Case(kind=Kind.LINK, name="link 1>2", fault="link 1>2 delay 30ms"),
    Case(kind=Kind.NIC, name="NIC 1 of host 2", fault="nic 2.1 down", nics=2),
    Case(
        kind=Kind.SWITCH,
        name="the switch",
        fault="; ".join(f"link {a}-{b} delay 15ms" for a in range(RANKS) for b in range(a)),
    ),
    Case(kind=Kind.HOST, name="host 3", slow="host", rank=3),
    Case(kind=Kind.RANK, name="rank 1", slow="rank", rank=1),
    Case(kind=Kind.LOADER, name="the data loader of rank 2", slow="loader", rank=2),
    Case(kind=Kind.DEAD, name="rank 3", fault="rank 3 kill"),
)


QUICK = CASES[1:2]


def measure(case: Case) -> Row:
    """Run a job and return the names that it got, while it ran and from its directory."""
    print(f"lab: {case.kind or 'none'}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="slackline-diagnosis-") as folder:
        keep = Path(folder) / "kept"
        command = [*SLACKLINE, *case.command, "--keep", str(keep), *case.script]
        live_ns = _follow(command)
        watch = Watch.recorded(keep, time.time_ns())
        groups = [group for rank in watch.job.ranks.values() for group in rank.groups.values()]
        start_ns = max(group.time_ns for group in groups) + AT_S * 10**9
    return _row(case, watch.spells, start_ns, live_ns)


def _follow(command: list[str]) -> list[int]:
    """Run a command and return the Unix times of its lines about causes and links.

    Raises RuntimeError for a command that has not ended within LIMIT_S seconds.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stderr is not None
        late = threading.Timer(LIMIT_S, process.terminate)
        late.start()
        times_ns = [
            time.time_ns()
            for line in process.stderr
            if line.startswith(("slackline run: cause: ", "slackline run: link "))
        ]
        ended = late.is_alive()
        late.cancel()
    if not ended:
        raise RuntimeError(f"the job has not ended within {LIMIT_S} s: {' '.join(command)}")
    return times_ns


def _row(case: Case, found: Sequence[Spell], start_ns: int, live_ns: list[int]) -> Row:
    expected = [] if case.kind is None else [(case.kind, case.name)]
    given = [(spell.cause.kind, spell.cause.name) for spell in found]
    values: dict[str, str | int | float] = {
        "named_kind": str(given[0][0]) if given else "none",
        "named": "; ".join(name for _, name in given) or "none",
        "right": int(list(dict.fromkeys(given)) == expected),  # the same name may come again
        "names": len(given),
    }
    if found:
        values["seconds"] = round((found[0].named_ns - start_ns) / 1e9, 2)
    lines = [at_ns for at_ns in live_ns if at_ns >= start_ns]
    if lines:
        values["line_seconds"] = round((lines[0] - start_ns) / 1e9, 2)
    labels = {"part": "lab", "kind": str(case.kind or "none"), "fault": case.fault or case.slow}
    return Row(labels=labels, values=values)
