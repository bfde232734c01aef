"""The networks on which benchmarks compare contestants: one host, or the hosts of a lab."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Network:
    """The ranks that communicate, and the wire between them."""

    name: str
    title: str
    ranks: int
    rate_bps: int | None = None
    """The rate of each host's NIC, with one rank on a host; None if all ranks are on this host."""

    @property
    def one_host(self) -> bool:
        """Whether all ranks are on one host, and so communicate over loopback and memory."""
        return self.rate_bps is None
