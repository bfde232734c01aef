"""Measure how much of the wire allreduces use: slackline over TCP and UDP, and gloo.

The ranks are on four hosts of a lab. Some parts measure a faulty wire: a NIC is cut and comes back,
packets are lost.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _harness.machine import describe_machine
from _harness.options import Options, parse
from _harness.report import Report
from cases import GBIT, HOSTS, SIZES, Wire
from failover import end_of_gloo, record
from losses import lossy
from outages import cut_and_back, cut_in_the_middle
from results import Results
from wires import System, ceiling, crew, use

from slackline.errors import UsageError
from slackline.lab import Lab, LabOptions

ROUNDS, QUICK_ROUNDS = 3, 1
FAST = 5 * GBIT
WIDE_BURST = 32 << 10
EASY = GBIT // 5
"""A rate in bits per second that two cores carry easily, twice for four hosts or in the user
switch.
"""
BOTH = "eth0,eth1"


def one_nic(wire: Wire, results: Results, options: Options) -> None:
    """Measure slackline over TCP and UDP, and gloo, on a wire of one NIC for each host."""
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    with (
        Lab(LabOptions(hosts=HOSTS, rate=wire.rate, burst=wire.burst)) as lab,
        crew(lab, gloo=True, RAILS="tcp") as tcp,
        crew(lab, RAILS="udp") as udp,
    ):
        systems = {
            "slackline tcp": System(ranks=tcp, group="slackline"),
            "slackline udp": System(ranks=udp, group="slackline"),
            "gloo": System(ranks=tcp, group="gloo"),
        }
        for _ in range(rounds):
            ceiling(lab, wire, tcp, results)
        sizes = SIZES[:2] if options.quick else SIZES
        # A burst exceeds the rate for messages of the smallest size, so they are left out.
        for size in sizes if wire.burst is None else sizes[1:]:
            use(wire, size, systems, results, rounds)


def two_nics(wire: Wire, results: Results) -> None:
    """Measure both NICs of each host beside one NIC."""
    with (
        Lab(LabOptions(hosts=HOSTS, nics=wire.nics, rate=wire.rate)) as lab,
        crew(lab, gloo=True, RAILS="tcp", INTERFACE="eth0") as one,
        crew(lab, gloo=True, RAILS="tcp", INTERFACE=BOTH) as two,
    ):
        # A result is a percentage of the rate of those NICs that the system uses, one or two.
        systems = {
            "slackline tcp, one NIC": System(ranks=one, group="slackline"),
            "slackline tcp, both NICs": System(ranks=two, group="slackline", nics=2),
        }
        if wire.rate >= GBIT:  # On a slower wire gloo would take minutes.
            systems["gloo, one NIC"] = System(ranks=one, group="gloo")
            systems["gloo, both NICs"] = System(ranks=two, group="gloo", nics=2)
        use(wire, SIZES[-1], systems, results, ROUNDS)


def nic_faults(wire: Wire, results: Results) -> None:
    """Measure a cut of one of two NICs, and its return."""
    with Lab(LabOptions(hosts=HOSTS, nics=wire.nics, rate=wire.rate)) as lab:
        for rails in ("tcp", "udp"):
            # Sums in rank order are bit-identical, whatever rails carry the data.
            with crew(lab, RAILS=rails, INTERFACE=BOTH, ORDER="rank") as ranks:
                system = f"slackline {rails}"
                cut_in_the_middle(lab, wire, system, ranks, results, ROUNDS)
                cut_and_back(lab, wire, system, ranks, results, ROUNDS)


def failover(wire: Wire, results: Results) -> None:
    """Record a series over slackline and over gloo in which a NIC is cut and comes back."""
    with Lab(LabOptions(hosts=HOSTS, nics=wire.nics, rate=wire.rate)) as lab:
        with crew(lab, gloo=True, RAILS="tcp", INTERFACE=BOTH) as ranks:
            record(lab, wire, "slackline tcp", "slackline", ranks, results)
            record(lab, wire, "gloo", "gloo", ranks, results)
        with crew(lab, RAILS="tcp", INTERFACE=BOTH) as ranks:
            end_of_gloo(lab, wire, ranks, results)


def faulty_links(wire: Wire, results: Results) -> None:
    """Measure links that lose, repeat, reorder and damage packets."""
    with (
        Lab(LabOptions(hosts=HOSTS, rate=wire.rate, switch="user")) as lab,
        crew(lab, RAILS="udp", ORDER="rank") as ranks,
    ):
        lossy(lab, wire, "slackline udp", ranks, results, ROUNDS)


def main() -> None:
    results = Results()
    slow = Wire(rate=GBIT)
    parts: dict[str, Callable[[], None]] = {
        f"{slow}": lambda: one_nic(slow, results, options),
        # The larger burst needs half as many timers, so the processors keep up with the wire.
        "wide": lambda: one_nic(Wire(rate=GBIT, burst=WIDE_BURST), results, options),
        "5 Gbit/s": lambda: one_nic(Wire(rate=FAST), results, options),
        "two NICs": lambda: two_nics(Wire(rate=GBIT, nics=2), results),
        "two easy NICs": lambda: two_nics(Wire(rate=EASY, nics=2), results),
        "NIC faults": lambda: nic_faults(Wire(rate=EASY, nics=2), results),
        "failover": lambda: failover(Wire(rate=EASY, nics=2), results),
        "faulty links": lambda: faulty_links(Wire(rate=EASY, switch="user"), results),
    }
    options = parse(
        "the share of the wire that allreduces use, and what faults cost", parts=[*parts]
    )
    machine = describe_machine()
    for name, part in parts.items():
        if options.part not in (None, name):
            results.skip(name, "not asked for")
            continue
        if options.quick and name != str(slow):
            results.skip(name, "left out by --quick")
            continue
        try:
            part()
        except UsageError as error:
            results.skip(name, str(error))
    report = Report(machine=machine, rows=results.rows(), targets=results.targets())
    report.print(results.tables(), options)


if __name__ == "__main__":
    main()
