"""The record about the device that adds for a rank: its cycles, its stalls and its counters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from slackline.units import show_percent

__all__ = ["STALLS", "DeviceReport", "cycles_text"]

STALLS = ("adder", "no_credit", "no_local_data", "no_peer_data", "no_host_room", "onset")
"""The counters of circuits that count cycles in which there was work and no addition began."""

_SHOWN = 2


@dataclass(frozen=True, kw_only=True)
class DeviceReport:
    """The counters of a rank's devices since its process began, all its groups together.

    A twin (a model in Python) has no cycles.
    """

    rank: int
    """The rank in the job."""
    time_ns: int
    """Unix time of the reading."""
    device: str
    """The kind of the device: "circuit" or "twin"."""
    cycles: int = 0
    """The clock cycles that the circuit has run."""
    busy: int = 0
    """The cycles in which the addition of a beat began."""
    stalls: Mapping[str, int] = field(default_factory=dict)
    """The cycles in which there was work and no addition began, by the reason, one of STALLS."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """The device's other counters, such as the frames it has taken, by name."""

    @classmethod
    def of(cls, rank: int, time_ns: int, device: str, counters: Mapping[str, int]) -> Self:
        """Return a report with these counters, sorted into cycles, stalls and others."""
        own = {"cycles", "busy", *STALLS}
        return cls(
            rank=rank,
            time_ns=time_ns,
            device=device,
            cycles=counters.get("cycles", 0),
            busy=counters.get("busy", 0),
            stalls={name: counters[name] for name in STALLS if name in counters},
            counts={name: value for name, value in counters.items() if name not in own},
        )

    @property
    def sentence(self) -> str:
        """The shares of the cycles: "busy 41%, no_peer_data 30%"; empty for a twin."""
        return cycles_text(self.cycles, self.busy, self.stalls)


def cycles_text(cycles: int, busy: int, stalls: Mapping[str, int]) -> str:
    """Return the shares of busy cycles and of the longest stalls: "busy 41%, no_peer_data 30%"."""
    if not cycles:
        return ""
    longest = sorted(stalls.items(), key=lambda each: -each[1])[:_SHOWN]
    shares = [("busy", busy), *((name, count) for name, count in longest if count)]
    return ", ".join(f"{name} {show_percent(count / cycles)}" for name, count in shares)
