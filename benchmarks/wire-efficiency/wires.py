"""Measurements of each library, and of plain TCP as the upper limit, on a lab's wire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from _harness.ideal import goodput_bps, percent_of_wire
from _harness.ranks import LabRanks
from cases import GBIT, HOSTS, Size, Wire
from performer import Performer, Span
from results import Results

from slackline.lab import Lab

CEILING_SECONDS = 0.5
"""The seconds for which each traffic pattern of plain TCP would fill the wire."""


@dataclass(frozen=True, kw_only=True)
class System:
    """A contestant: some ranks, and the process group of these ranks that is measured."""

    ranks: LabRanks
    group: str
    """The name of the group: slackline or gloo."""
    nics: int = 1
    """The number of NICs of each host that the system uses."""


@contextmanager
def crew(lab: Lab, *, gloo: bool = False, **environment: str) -> Iterator[LabRanks]:
    """Run ranks on the lab's hosts with the given variables of slackline; gloo uses the same NICs.

    The variables are named without the prefix SLACKLINE_.
    """
    interfaces = environment.get("INTERFACE", "eth0")
    variables = {f"SLACKLINE_{name}": value for name, value in environment.items()}
    others = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": interfaces}
    with LabRanks(Performer, lab, environment={**variables, **others}) as ranks:
        if gloo:
            ranks.ask("open_gloo")
        yield ranks
        ranks.ask("close")


def ceiling(lab: Lab, wire: Wire, ranks: LabRanks, results: Results) -> None:
    """Measure plain TCP on NIC 0 of this lab: one stream, a ring, and all hosts to all hosts."""
    hosts = range(HOSTS)
    patterns = {
        "one to one": {0: [1]},
        "ring": {host: [(host + 1) % HOSTS] for host in hosts},
        "all to all": {host: [peer for peer in hosts if peer != host] for host in hosts},
    }
    for name, streams in patterns.items():
        ports = ranks.ask("listen")
        targets = [
            [(lab.address(peer), ports[peer]) for peer in streams.get(host, [])] for host in hosts
        ]
        arrivals = [sum(host in peers for peers in streams.values()) for host in hosts]
        ranks.ask("connect", targets, arrivals)
        fan = max(map(len, streams.values()))
        nbytes = int(goodput_bps(wire.rate) / 8 * CEILING_SECONDS / fan)
        # The first transfer opens the TCP windows.
        ranks.ask("pour", nbytes // 10)
        spans = ranks.ask("pour", nbytes)
        ranks.ask("hang_up")
        seconds = (max(end for _, end in spans) - min(start for start, _ in spans)) / 1e9
        percent = 100 * fan * nbytes * 8 / goodput_bps(wire.rate) / seconds
        results.ceiling(wire, name, percent)


def use(
    wire: Wire, size: Size, systems: Mapping[str, System], results: Results, rounds: int
) -> None:
    """Measure each library in turns, `rounds` times: first streamed, then one call at a time."""
    faster = max(1, wire.rate // GBIT)
    crews = {id(system.ranks): system.ranks for system in systems.values()}
    for ranks in crews.values():
        ranks.ask("prepare", size.count, size.buffers)
    passes, calls = size.gbit_passes * faster, size.one_at_a_time * faster
    for number in range(rounds):
        order = list(systems) if number % 2 == 0 else list(reversed(systems))
        for name in order:
            system, salt = systems[name], number % 4
            how = (system.group, size.warm_up, passes, size.outstanding, salt)
            spans = system.ranks.ask("stream", *how)
            done = passes * size.buffers
            results.used(wire, size, name, "streamed", _percent(wire, size, system, done, spans))
            spans = system.ranks.ask("one_at_a_time", system.group, calls, salt)
            percent = _percent(wire, size, system, calls, spans)
            results.used(wire, size, name, "one at a time", percent)
    for ranks in crews.values():
        ranks.ask("prepare", 0, 0)


def _percent(wire: Wire, size: Size, system: System, calls: int, spans: list[Span]) -> float:
    """Return the percentage of the wire that calls used, from the first start to the last end."""
    seconds = (max(s.end_ns for s in spans) - min(s.start_ns for s in spans)) / 1e9
    return percent_of_wire(size.nbytes, calls, seconds, HOSTS, wire.rate, system.nics)
