"""Reports on the rails of a group's links, and the offsets of clocks that their probes show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from slackline.nic._negotiated import NegotiatedRates
from slackline.records import ClockOffset, LinkReport

__all__ = ["Counted", "LinkReports", "within_host"]

_INTERVAL_NS = 1_000_000_000


class Counted(Protocol):
    """The fields of the engine's RailStatus that a report contains."""

    @property
    def link(self) -> int: ...
    @property
    def rail(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def bytes_sent(self) -> int: ...
    @property
    def bytes_received(self) -> int: ...
    @property
    def packets_sent(self) -> int: ...
    @property
    def packets_resent(self) -> int: ...
    @property
    def queued_bytes(self) -> int: ...
    @property
    def unconfirmed_bytes(self) -> int: ...
    @property
    def confirmed_bytes(self) -> int: ...
    @property
    def busy_ns(self) -> int: ...
    @property
    def round_trip_ns(self) -> int: ...
    @property
    def probes(self) -> Sequence[tuple[int, int, int, int]]: ...


_Counts = tuple[int, int, int, int, int, int, int]
_NOTHING = 0, 0, 0, 0, 0, 0


class LinkReports:
    """The reports of one rank about its rails: at most one a second for each rail."""

    def __init__(
        self, rank: int, start_ns: int, write: Callable[[LinkReport | ClockOffset], None]
    ) -> None:
        """Create the reports of `rank`; the first interval begins at `start_ns`."""
        self._rank, self._write = rank, write
        self._start_ns = self._told_ns = start_ns
        self._before: dict[tuple[int, int], _Counts] = {}
        self._probed_ns: dict[tuple[int, int], int] = {}
        self._rates = NegotiatedRates()

    def due(self, now_ns: int) -> bool:
        """Return whether a second has passed since the previous reports."""
        return now_ns - self._told_ns >= _INTERVAL_NS

    def take(
        self,
        now_ns: int,
        wires: Iterable[tuple[int, Counted]],
        conditions: Mapping[tuple[int, int, int], str],
    ) -> None:
        """Write a report of each rail and the best estimate of each peer's clock.

        `wires` has (peer, status) for each rail; `conditions` maps (source, target, rail) to a
        sentence.
        """
        self._told_ns = now_ns
        best: dict[int, ClockOffset] = {}
        for peer, status in wires:
            key = status.link, status.rail
            probed_ns = self._probed_ns.get(key, -1)
            fresh = [probe for probe in status.probes if probe[0] > probed_ns]
            self._probed_ns[key] = max((probe[0] for probe in fresh), default=probed_ns)
            self._report(now_ns, peer, status, conditions, fresh)
            for probe in fresh:
                offset = offset_of(self._rank, peer, probe)
                if peer not in best or offset.error_ns < best[peer].error_ns:
                    best[peer] = offset
        for offset in best.values():
            self._write(offset)

    def _report(
        self,
        now_ns: int,
        peer: int,
        status: Counted,
        conditions: Mapping[tuple[int, int, int], str],
        probes: Sequence[tuple[int, int, int, int]],
    ) -> None:
        key = status.link, status.rail
        counts = (
            now_ns,
            status.bytes_sent,
            status.bytes_received,
            status.packets_sent,
            status.packets_resent,
            status.confirmed_bytes,
            status.busy_ns,
        )
        before = self._before.get(key, (self._start_ns, *_NOTHING))
        if any(now < then for now, then in zip(counts, before, strict=True)):
            before = (
                before[0],
                0,
                0,
                0,
                0,
                0,
                0,
            )  # The rail has connected again and counts from 0.
        self._before[key] = counts
        interval_ns, sent, received, packets, resent, confirmed, busy_ns = (
            now - then for now, then in zip(counts, before, strict=True)
        )
        self._write(
            LinkReport(
                rank=self._rank,
                peer=peer,
                rail=status.rail,
                kind=status.kind,
                at_ns=now_ns,
                interval_ns=interval_ns,
                sent_bytes=sent,
                received_bytes=received,
                packets=packets,
                resent=resent,
                round_trip_ns=status.round_trip_ns,
                queued_bytes=status.queued_bytes,
                unconfirmed_bytes=status.unconfirmed_bytes,
                state=status.state,
                outward=conditions.get((self._rank, peer, status.rail), ""),
                inward=conditions.get((peer, self._rank, status.rail), ""),
                confirmed_bytes=confirmed,
                busy_ns=busy_ns,
                least_round_trip_ns=min(map(round_trip, probes), default=0),
                negotiated_bps=self._rates.of_rail(status.name),
                within_host=within_host(status.name),
            )
        )


def within_host(name: str) -> bool:
    """Return whether both ends of a rail are at one host.

    `name` is the engine's name of the rail: "udp 10.0.0.1>10.0.0.1".
    """
    here, _, there = name.partition(" ")[2].partition(">")
    return bool(here) and (here == there or here.startswith("127.") or here == "::1")


def offset_of(rank: int, peer: int, probe: tuple[int, int, int, int]) -> ClockOffset:
    """Return the peer's clock minus this rank's, estimated from one probe (RFC 5905).

    The probe has four times: sent by `rank`, received by the peer, answered by the peer, and back
    at `rank`. Each is read from the clock of the host where it happens. The error of the estimate
    is at most half of the round trip.
    """
    sent, received, answered, back = probe
    return ClockOffset(
        rank=rank,
        peer=peer,
        at_ns=(sent + back) // 2,
        offset_ns=((received - sent) + (answered - back)) // 2,
        error_ns=(round_trip(probe) + 1) // 2,
    )


def round_trip(probe: tuple[int, int, int, int]) -> int:
    """Return the time of a probe on its way, in nanoseconds, without the time at the peer."""
    sent, received, answered, back = probe
    return (back - sent) - (answered - received)
