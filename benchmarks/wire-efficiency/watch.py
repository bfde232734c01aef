"""A sampler of a host's NICs: when a cable was unplugged, and how many bytes had passed."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

PERIOD_SECONDS = 0.004


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The state of all NICs at one moment, in order of their numbers."""

    time_ns: int
    plugged: tuple[bool, ...]
    received: tuple[int, ...]
    """The bytes received since the NIC was created."""
    sent: tuple[int, ...]


class Watch:
    """A thread that samples eth0 to eth<nics - 1> of this process's host until `end` is called."""

    def __init__(self, nics: int) -> None:
        self._nics = nics
        self._samples: list[Sample] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> list[Sample]:
        """Stop sampling and return all samples."""
        self._over.set()
        self._thread.join()
        return self._samples

    def _run(self) -> None:
        while not self._over.wait(PERIOD_SECONDS):
            self._samples.append(
                Sample(
                    time_ns=time.monotonic_ns(),
                    plugged=tuple(map(bool, _read("carrier", self._nics))),
                    received=_read("statistics/rx_bytes", self._nics),
                    sent=sent_bytes(self._nics),
                )
            )


def sent_bytes(nics: int) -> tuple[int, ...]:
    """Return the bytes that each NIC of this process's host has sent since it was created."""
    return _read("statistics/tx_bytes", nics)


def _read(name: str, nics: int) -> tuple[int, ...]:
    return tuple(int(Path(f"/sys/class/net/eth{nic}", name).read_text()) for nic in range(nics))


def unplugged_at(samples: list[Sample], nic: int) -> int:
    """Return the time in ns of the last sample before the cable of `nic` was unplugged."""
    for before, after in pairwise(samples):
        if before.plugged[nic] and not after.plugged[nic]:
            return before.time_ns
    raise RuntimeError(f"the cable of NIC {nic} was never out")


def plugged_again_at(samples: list[Sample], nic: int) -> int:
    """Return the time in ns of the last sample before the cable of `nic` was plugged in again."""
    for before, after in pairwise(samples):
        if not before.plugged[nic] and after.plugged[nic]:
            return before.time_ns
    raise RuntimeError(f"the cable of NIC {nic} never came back")
