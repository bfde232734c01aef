"""Real training jobs on labs that are slow before the job begins, and the names that they get."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from _harness.commands import run_slackline

from slackline.causes import Spell, Watch

JOB = Path(__file__).with_name("start_job.py")
SECONDS, WITHIN_S = 12, 10
"""The length of a job's training, and the time from the first step in which a cause must be named.
"""
LIMIT_S = 240
LAB_MBIT = 800
"""The sum of the hosts' rates: two cores carry as much, so that a healthy network is healthy."""
KINDS = ("none", "nic rate", "rate", "loss", "nic loss", "delay", "jitter", "corrupt", "rank")
FAULTY = 113
"""The seed from which on all jobs are healthy; of those before, 100 have a fault."""
HEALTHY = ("none", "busy", "pipeline")
"""Healthy jobs: as usual, beside two processes that keep the cores busy, and an uneven pipeline."""
_BUSY = [sys.executable, "-c", "while True: pass"]


@dataclass(frozen=True, kw_only=True)
class Start:
    """A job on a lab with one fault from the start, or none."""

    kind: str
    """One of KINDS or HEALTHY."""
    hosts: int
    rail: str
    """The kind of rails: "tcp" or "udp"."""
    faults: tuple[str, ...] = ()
    """The fault as arguments of `slackline run --fault`."""
    name: str = ""
    """The name of the cause; empty without a fault."""

    def __str__(self) -> str:
        said = "; ".join(self.faults) or f"no fault ({self.kind})"
        return f"{self.hosts} hosts over {self.rail}: {said}"


@dataclass(frozen=True, kw_only=True)
class Named:
    """The causes that a job got."""

    spells: Sequence[Spell]
    stepped_ns: int
    """The Unix time at which the last rank ended its first step."""
    lines: Sequence[str]
    """The causes that `slackline run` printed while the job ran."""

    @property
    def names(self) -> list[str]:
        """The names of the causes, each once."""
        return list(dict.fromkeys(spell.cause.name for spell in self.spells))

    @property
    def seconds(self) -> float | None:
        """The time from the first step to the first name; None without a name."""
        if not self.spells:
            return None
        return (self.spells[0].named_ns - self.stepped_ns) / 1e9


def draw(seed: int) -> Start:
    """Return a random job; seeds that follow each other go through all kinds of faults in turn."""
    random = Random(seed)
    kind = KINDS[seed % len(KINDS)] if seed < FAULTY else HEALTHY[seed % len(HEALTHY)]
    hosts, rail = random.choice((4, 4, 4, 8)), random.choice(("tcp", "tcp", "udp"))
    base = Start(kind=kind, hosts=hosts, rail=rail)
    one, other = random.sample(range(hosts), 2)
    rate_mbit = LAB_MBIT // hosts
    low, high = sorted((one, other))
    share = random.uniform(0.1, 0.75)
    rate = f"rate {round(rate_mbit * share)}Mbit"
    # All links of a NIC share its rate, so that a faster limit of one of them would change nothing.
    of_link = f"rate {round(rate_mbit * share / (hosts - 1))}Mbit"
    loss = f"loss {random.uniform(0.5, 5):.1f}%"
    match kind:
        case "nic rate":
            return _with(base, [f"nic {one}.0 {rate}"], f"NIC 0 of host {one}")
        case "rate":
            return _with(base, [f"link {one}>{other} {of_link}"], f"link {one}>{other}")
        case "loss":
            return _with(base, [f"link {one}>{other} {loss}"], f"link {one}>{other}")
        case "nic loss":
            peers = [peer for peer in range(hosts) if peer != one]
            faults = [f"link {one}-{peer} {loss}" for peer in peers]
            return _with(base, faults, f"NIC 0 of host {one}")
        case "delay":
            fault = f"link {low}-{high} delay {random.randrange(5, 40)}ms"
            return _with(base, [fault], f"link {low}-{high}")
        case "jitter":
            fault = f"link {low}-{high} delay 5ms jitter {random.randrange(5, 30)}ms"
            return _with(base, [fault], f"link {low}-{high}")
        case "corrupt":
            fault = f"link {one}>{other} corrupt {random.uniform(0.5, 5):.1f}%"
            return _with(base, [fault], f"link {one}>{other}")
        case "rank":
            return _with(base, [f"rank {one} slow {random.uniform(1.5, 3):.1f}x"], f"rank {one}")
        case _:
            return base


def _with(base: Start, faults: Sequence[str], name: str) -> Start:
    return Start(kind=base.kind, hosts=base.hosts, rail=base.rail, faults=tuple(faults), name=name)


def run(start: Start, *, keep: Path | None = None) -> Named:
    """Run a job and return the causes that its telemetry gives, also into the directory `keep`.

    Raises RuntimeError for a job that fails.
    """
    folder = Path(tempfile.mkdtemp(prefix="slackline-diagnosis-"))
    try:
        place = folder / "kept"
        command = ["run", "--lab", "--hosts", str(start.hosts)]
        command += ["--rate", f"{LAB_MBIT // start.hosts}Mbit", "--keep", str(place)]
        for fault in start.faults:
            command += ["--fault", fault]
        model = "pipeline" if start.kind == "pipeline" else "data-parallel"
        busy = [subprocess.Popen(_BUSY) for _ in range(2 if start.kind == "busy" else 0)]
        settings = {"OMP_NUM_THREADS": "1", "SLACKLINE_RAILS": start.rail}
        try:
            done = run_slackline(
                [*command, str(JOB), str(SECONDS), model], settings, timeout_s=LIMIT_S
            )
        finally:
            for each in busy:
                each.kill()
                each.wait()
        watch = Watch.recorded(place, time.time_ns())
        first = [(rank.steps or rank.pipeline)[0] for rank in watch.job.ranks.values()]
        if keep is not None:
            shutil.copytree(watch.job.directory, keep)
    finally:
        shutil.rmtree(folder)
    lines = [line for line in done.stderr.splitlines() if line.startswith("slackline run: cause: ")]
    stepped_ns = max(step.time_ns for step in first)
    return Named(spells=watch.spells, stepped_ns=stepped_ns, lines=lines)


def judged(start: Start, named: Named) -> str:
    """Return a sentence about what is wrong with the names of a job; empty if they are right."""
    wanted = [start.name] if start.name else []
    live = [line for line in named.lines if start.name and f" {start.name}: " in line]
    # The acknowledgements of the other direction wait in a slow direction: the link alone is right.
    undirected = start.name.replace(">", "-")
    if undirected != start.name:
        low, _, high = undirected.removeprefix("link ").partition("-")
        undirected = f"link {min(low, high)}-{max(low, high)}"
    if start.kind == "rate" and named.names == [undirected]:
        wanted, live = named.names, [line for line in named.lines if f" {undirected}: " in line]
    if named.names != wanted:
        return (
            f"{start}: named {', '.join(named.names) or 'nothing'}, not {start.name or 'nothing'}"
        )
    if wanted and not live:
        return f"{start}: {start.name} was not named while the job ran"
    if wanted and (seconds := named.seconds) is not None and seconds > WITHIN_S:
        return f"{start}: {start.name} was named after {seconds:.1f} s"
    return ""
