"""Training jobs: one run of train.py over `slackline run`, with its steps and named causes."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from _harness.commands import run_slackline
from cases import CUT_AFTER_S, HOSTS, Contestant

from slackline.causes import Watch

SCRIPT = Path(__file__).with_name("train.py")
LIMIT_S = 900


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job that has ended."""

    ended_ns: list[int]
    """The Unix time of the end of each step."""
    losses: list[float]
    causes: list[str]
    """The sentences of the causes that the telemetry names."""
    since_ns: list[int]
    """The Unix time at which each of the causes began."""

    @property
    def steps_s(self) -> list[float]:
        """The duration of each step but the first."""
        return [(after - before) / 1e9 for before, after in pairwise(self.ended_ns)]


def train(contestant: Contestant, *, steps: int, size: str, rate: int | None = None) -> Job:
    """Run a job on this machine, or on a lab whose NICs carry `rate` Mbit/s each.

    Raises RuntimeError for a job that fails.
    """
    with tempfile.TemporaryDirectory(prefix="slackline-fine-tuning-") as folder:
        place, output = Path(folder, "kept"), Path(folder, "steps.json")
        command = ["run", "--keep", str(place), *_network(contestant, rate)]
        command += [str(SCRIPT), "--backend", contestant.backend, "--method", contestant.method]
        command += ["--size", size, "--steps", str(steps), "--output", str(output)]
        settings = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        if rate is not None:
            settings |= {"SLACKLINE_RAILS": "tcp", "GLOO_SOCKET_IFNAME": "eth0"}
        run_slackline(command, settings, timeout_s=LIMIT_S)
        found = json.loads(output.read_text())
        # The ranks of another backend write no telemetry.
        told = contestant.backend == "slackline"
        spells = Watch.recorded(place, time.time_ns()).spells if told else []
    return Job(
        ended_ns=found["ended_ns"],
        losses=found["losses"],
        causes=[spell.cause.sentence for spell in spells],
        since_ns=[spell.cause.since_ns for spell in spells],
    )


def _network(contestant: Contestant, rate: int | None) -> Sequence[str]:
    """Return the options of `slackline run` for the network of a job."""
    if rate is None:
        return ["--ranks", str(HOSTS)]
    options = ["--lab", "--hosts", str(HOSTS), "--rate", f"{rate}Mbit"]
    options += ["--nics", str(contestant.nics)]
    if contestant.fault:
        options += ["--fault", contestant.fault.format(tenth=rate // 10)]
    if contestant.cut:
        options += ["--fault", f"nic 1.1 down from {CUT_AFTER_S[rate]}s"]
    return options
