"""The sizes and transports that are measured, and the targets of their ratios."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

ITEM_BYTES = 4
"""The size of an element: float32."""


class Transport(StrEnum):
    """The rails that carry the bytes, and the kind of memory that the tensors are in."""

    TCP = "tcp rails"
    PRIVATE = "shm private"
    """Shared-memory rings between the ranks; the tensors are ordinary ones."""
    REGISTERED = "shm registered"
    """Tensors that peers read in place, because `slackline.backend.empty` allocated them."""

    @property
    def rails(self) -> str:
        """The value of SLACKLINE_RAILS for this transport."""
        return "tcp" if self is Transport.TCP else "shm"


@dataclass(frozen=True, kw_only=True)
class Case:
    """An all_reduce of float32 with SUM, of one size and number of ranks."""

    ranks: int
    name: str
    nbytes: int
    calls: int
    """The number of calls in a timed turn. Values grow by `ranks` at each call: see `pattern`."""
    warm_up: int
    rounds: int
    quick_rounds: int

    @property
    def count(self) -> int:
        return self.nbytes // ITEM_BYTES


CASES = (
    Case(ranks=2, name="4 KiB", nbytes=4096, calls=200, warm_up=8, rounds=61, quick_rounds=5),
    Case(ranks=2, name="64 KiB", nbytes=65536, calls=100, warm_up=8, rounds=61, quick_rounds=5),
    Case(ranks=2, name="1 MiB", nbytes=1 << 20, calls=20, warm_up=4, rounds=41, quick_rounds=5),
    Case(ranks=4, name="16 MiB", nbytes=16 << 20, calls=10, warm_up=2, rounds=21, quick_rounds=3),
    Case(ranks=4, name="100 MB", nbytes=10**8, calls=4, warm_up=1, rounds=11, quick_rounds=3),
)

# Targets: the least ratio of gloo's time to slackline's, in one row for each case, as in CASES.
GLOO_OVER_OURS = {
    (2, "4 KiB"): {Transport.TCP: 10.0, Transport.PRIVATE: 18.0, Transport.REGISTERED: 18.0},
    (2, "64 KiB"): {Transport.TCP: 12.0, Transport.PRIVATE: 18.0, Transport.REGISTERED: 25.0},
    (2, "1 MiB"): {Transport.TCP: 6.0, Transport.PRIVATE: 9.0, Transport.REGISTERED: 30.0},
    (4, "16 MiB"): {Transport.TCP: 1.4, Transport.PRIVATE: 2.9, Transport.REGISTERED: 8.0},
    (4, "100 MB"): {Transport.TCP: 1.3, Transport.PRIVATE: 2.6, Transport.REGISTERED: 7.0},
}

# Targets: the least ratio of OpenMPI's time to slackline's.
OPENMPI_OVER_OURS = {(4, "100 MB"): {Transport.PRIVATE: 2.0}}

IDLE_RANKS = 4
IDLE_MS_PER_SECOND = 1.0
"""The processor time that an idle engine may use in a second, in milliseconds."""


def seat(contestant: str, transport: Transport) -> str:
    """Return the name of the turn that measures a contestant over a transport.

    gloo and OpenMPI have one kind of memory, so one turn of gloo or OpenMPI is compared with both
    of slackline's turns.
    """
    if contestant in ("gloo", "openmpi"):
        return contestant
    return f"{contestant} {'registered' if transport is Transport.REGISTERED else 'private'}"
