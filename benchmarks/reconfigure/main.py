"""Measure what a change of a process group's members costs, on one host and between hosts.

A group of slackline changes in place. Beside it stand a group that is opened anew, and gloo.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count, product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _harness.machine import describe_machine
from _harness.options import parse
from _harness.ranks import Conductor, LabRanks, Ranks
from _harness.report import Report
from _harness.rounds import in_turns
from cases import (
    CONTESTANTS,
    CYCLE,
    GROWTH,
    HOST,
    PARTS,
    SERIES,
    SHORTEST,
    SITES,
    SIZES,
    SLACKLINE,
    STAYS,
    Contestant,
    Series,
    Site,
    members_after,
)
from performer import Performer, Turn
from results import Growth, Results, Times

from slackline.errors import UsageError
from slackline.lab import Lab, LabOptions


class Crew:
    """The ranks of a site, whose default group changes."""

    def __init__(self, site: Site, ranks: Conductor, address: str) -> None:
        self._site, self._ranks, self._numbers = site, ranks, count(1)
        self._store = address, ranks.ask("serve", address)[0]

    def begin(self, contestant: Contestant) -> None:
        """Make a group of all ranks, which no rank had before; the next changes are of it."""
        self._ranks.ask("begin", contestant, *self._store)
        self.change(STAYS, SHORTEST, warm_up=0)

    def change(self, change: str, nbytes: int, *, warm_up: int) -> list[Turn]:
        """Make one change; return the turns of the new members."""
        members = members_after(change, self._site.ranks)
        known = self._ranks.ask("handle")
        handles = tuple(known[member] for member in members)
        answers = self._ranks.ask("change", next(self._numbers), members, handles, nbytes, warm_up)
        self._ranks.ask("leave", members)
        return [turn for turn in answers if turn is not None]

    def end(self) -> None:
        """End the group of all ranks."""
        self._ranks.ask("leave", ())

    def growth(self, series: Series, *, quick: bool) -> Growth:
        """Make the changes of a series; return the growth by those that count."""
        self.begin(SLACKLINE)
        self._cycles(series, series.quick_first if quick else series.first)
        before = self._ranks.ask("holdings")
        cycles = series.quick_cycles if quick else series.cycles
        self._cycles(series, cycles)
        after = self._ranks.ask("holdings")
        self.end()
        return Growth(changes=cycles * len(series.cycle), before=before, after=after)

    def _cycles(self, series: Series, cycles: int) -> None:
        for _ in range(cycles):
            for change in series.cycle:
                self.change(change, SHORTEST, warm_up=0)


@contextmanager
def crew_at(site: Site) -> Iterator[Crew]:
    """Start the ranks of a site; raise UsageError if this machine does not allow labs."""
    # torch's stores ask a name server for the name of each address; a lost answer costs 1 s, not 5.
    environment = {"OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:1"}
    with ExitStack() as stack:
        if site.one_host:
            environment |= {"GLOO_SOCKET_IFNAME": "lo"}
            ranks: Conductor = Ranks(Performer, site.ranks, environment=environment)
            yield Crew(site, stack.enter_context(ranks), "127.0.0.1")
            return
        lab = stack.enter_context(Lab(LabOptions(hosts=site.ranks, rate=site.rate_bps)))
        environment |= {
            "GLOO_SOCKET_IFNAME": "eth0",
            "SLACKLINE_INTERFACE": "eth0",
            "SLACKLINE_RAILS": "tcp",
        }
        ranks = LabRanks(Performer, lab, environment=environment)
        yield Crew(site, stack.enter_context(ranks), lab.address(0))


def measure(site: Site, crew: Crew, results: Results, *, quick: bool) -> None:
    """Measure the changes of all contestants at a site, in turns."""
    started = time.monotonic()
    for number in range(1 + site.rounds):
        if quick and number > 1 and time.monotonic() - started > site.quick_seconds:
            break
        for contestant in in_turns(CONTESTANTS, number):
            crew.begin(contestant)
            # In the first round the ranks only import modules.
            for nbytes, change in product(SIZES if number else (), CYCLE):
                turns = crew.change(change, nbytes, warm_up=site.warm_up(contestant))
                results.add(site, contestant, change, nbytes, Times.of(turns))
            crew.end()


def run(site: Site, parts: Sequence[str], results: Results, *, quick: bool) -> None:
    """Run those of `parts` that belong to a site; raise UsageError if it cannot be built."""
    grows = site == HOST and GROWTH in parts
    if site.name not in parts and not grows:
        return
    with crew_at(site) as crew:
        if site.name in parts:
            measure(site, crew, results, quick=quick)
        if grows:
            for series in SERIES:
                results.growths[series] = crew.growth(series, quick=quick)


def main() -> None:
    options = parse("what a change of a process group's members costs", parts=PARTS)
    machine = describe_machine()
    results = Results()
    parts = PARTS if options.part is None else (options.part,)
    for site in SITES:
        try:
            run(site, parts, results, quick=options.quick)
        except UsageError as error:  # This machine does not allow labs.
            results.skipped[site.name] = str(error)
    report = Report(machine=machine, rows=results.rows(), targets=results.targets())
    report.print(results.tables(), options, notes=results.notes())


if __name__ == "__main__":
    main()
