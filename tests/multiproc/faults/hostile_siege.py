"""A healthy group under attack, and the resources that the attacked process uses."""

import contextlib
import json
import os
import random
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault_job import Job
from hostile_attacks import Attack, Strangers
from hostile_peer import HostilePeer
from hostile_ranks import Prefixed

from slackline import errors
from slackline.nic import NicOptions
from slackline.nic.connect._rendezvous import EndpointDescriptor, to_descriptor

SCRIPT = Path(__file__).with_name("hostile_ranks.py")
VICTIM = 1
SETTLE_S = 20.0
CLEAN = {name for name in vars(errors) if name.endswith("Error")}
"""The names of slackline's errors; any other exception would be a defect of the victim."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The resources of a process: descriptors, threads, and memory in KiB, also at its peak."""

    descriptors: int
    threads: int
    memory_kib: int
    peak_kib: int

    @classmethod
    def of(cls, pid: int) -> "Usage":
        """Read the resources of the process from /proc."""
        text = Path(f"/proc/{pid}/status").read_text()
        found = {name: int(n) for name, n in re.findall(r"^(\w+):\s+(\d+)", text, re.MULTILINE)}
        return cls(
            descriptors=len(os.listdir(f"/proc/{pid}/fd")),
            threads=found["Threads"],
            memory_kib=found["VmRSS"],
            peak_kib=found["VmHWM"],
        )


class Siege:
    """A healthy group of two processes, whose rank 1 is attacked; both check every sum."""

    def __init__(self, job: Job, rails: Sequence[str], **options: Any) -> None:
        """Start the group and wait until the victim is ready to be attacked."""
        self._job, self._count = job, 0
        self._options = NicOptions(rails=tuple(rails), **options)
        self._first = len(job.processes)
        job.start("add", 2, script=SCRIPT, options={"rails": list(rails), **options})
        told = json.loads(job.store.get(f"healthy/slackline/rank/{VICTIM}"))
        self.descriptor: EndpointDescriptor = to_descriptor(told)
        self.pid = job.processes[self._first + VICTIM].pid

    def usage(self) -> Usage:
        """Return the resources of the victim."""
        return Usage.of(self.pid)

    def attack(self, how: Attack, rng: random.Random) -> str:
        """Attack a new group of the victim; return the name of the victim's error, or "sum".

        The healthy group has made progress when this function returns.
        """
        number = self._order("group")
        with HostilePeer(Prefixed(self._job.store, f"{number}/"), self._options, rng) as peer:
            with contextlib.suppress(OSError):  # The victim may cut the connection at any point.
                how(peer)
            outcome = self._job.told(VICTIM, f"outcome/{number}")
        assert outcome == "sum" or outcome in CLEAN, f"{how.__name__}: {outcome}"
        return str(outcome)

    @contextlib.contextmanager
    def besieged(self, how: Strangers, rng: random.Random) -> Iterator[None]:
        """Open connections from outside the job, and close them at the end of the block.

        The healthy group has made progress when the block begins.
        """
        with closing() as kept:
            how(self.descriptor, rng, kept)
            self.progress()
            yield

    def progress(self) -> None:
        """Wait until the healthy group has made further exact sums."""
        assert self._job.told(VICTIM, f"outcome/{self._order('nothing')}") is None

    def end(self) -> list[int]:
        """End the group; return the exit codes of its ranks, which are 0 if every sum was exact."""
        self._job.store.set(f"attack/{self._count}", "null")
        self._job.tell("stop")
        return self._job.ends((self._first, self._first + 1))

    def _order(self, what: str) -> int:
        number, self._count = self._count, self._count + 1
        self._job.store.set(f"attack/{number}", json.dumps(what))
        return number


@contextlib.contextmanager
def closing() -> Iterator[list[socket.socket]]:
    """Provide a list, and close the sockets in it at the end of the block."""
    kept: list[socket.socket] = []
    try:
        yield kept
    finally:
        for sock in kept:
            sock.close()


def settled(pid: int, good: Callable[[Usage], bool]) -> Usage:
    """Return the resources of a process once `good` accepts them, or after a time limit."""
    deadline = time.monotonic() + SETTLE_S
    while not good(now := Usage.of(pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return now


def udp_ends(pid: int) -> Mapping[int, int]:
    """Map the port of each connected UDP socket of a process to the port of its peer."""
    links = (Path(f"/proc/{pid}/fd") / name for name in os.listdir(f"/proc/{pid}/fd"))
    mine = {os.readlink(link) for link in links}
    ends = {}
    for line in Path(f"/proc/{pid}/net/udp").read_text().splitlines()[1:]:
        words = line.split()
        if f"socket:[{words[9]}]" in mine:
            port, far = (int(word.rpartition(":")[2], 16) for word in words[1:3])
            ends[port] = far
    return ends
