"""Measure the processor time that a byte on the wire costs: slackline, gloo, OpenMPI, a plain ring.

All contestants of a network are alive at the same time, each in processes of its own, and take
turns. Contestants sleep while another contestant is measured.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _harness.machine import describe_machine, softirq_seconds
from _harness.options import parse
from _harness.report import Report
from _harness.rounds import in_turns
from cases import (
    FULL,
    NETWORKS,
    PARTS,
    QUICK,
    Cell,
    Contestant,
    Lengths,
    Network,
    available_on,
    calls_for,
    cells_of,
    left_out,
    warm_up_count,
)
from contestants import Crew, crews_on, missing
from results import Idle, Results, Turn
from targets import targets

from slackline.errors import UsageError


def rest(how: Lengths) -> Idle:
    """Sleep, and return the time slept and the machine's time in soft interrupts meanwhile."""
    started, softirq = time.monotonic(), softirq_seconds()
    time.sleep(how.idle_s)
    return Idle(seconds=time.monotonic() - started, softirq_s=softirq_seconds() - softirq)


def settle(crew: Crew, cell: Cell, how: Lengths) -> int:
    """Return the number of operations in a turn of this contestant, found by trial operations.

    The trial operations also touch buffers and open TCP windows for the first time.
    """
    if cell.ideal_s >= how.turn_s:
        return 1
    for calls in (1, 3):
        seconds = max(usage.seconds for usage in crew.turn(cell.size.count, calls, 0))
    return calls_for(seconds, how.turn_s)


def measure(crew: Crew, cell: Cell, calls: int, number: int) -> Turn:
    """Measure one contestant's turn in the round `number`."""
    salt, few = number % 4, warm_up_count(cell)
    crew.turn(few, max(1, calls // 10) if few == cell.size.count else 1, salt)
    packets, softirq, started = crew.packets(), softirq_seconds(), time.monotonic()
    usages = crew.turn(cell.size.count, calls, salt)
    return Turn(
        usages=usages,
        calls=calls,
        window_s=time.monotonic() - started,
        softirq_s=softirq_seconds() - softirq,
        packets=crew.packets() - packets,
    )


def play(crews: Mapping[Contestant, Crew], cell: Cell, how: Lengths, results: Results) -> None:
    """Measure all_reduces of one size on one network, with all contestants in turns."""
    for crew in crews.values():
        crew.prepare(cell.size.count)
    calls = {who: settle(crew, cell, how) for who, crew in crews.items()}
    for number in range(how.rounds):
        results.record_idle(cell.network, rest(how))
        for who in in_turns(list(crews), number):
            results.record(cell, who, measure(crews[who], cell, calls[who], number))
    for crew in crews.values():
        crew.prepare(0)


def play_network(
    network: Network, chosen: Mapping[Cell, list[Contestant]], how: Lengths, results: Results
) -> None:
    """Measure all sizes on one network; skip them if this machine cannot provide the network.

    `chosen` has the contestants of each size, the same for all sizes.
    """
    who = next(iter(chosen.values()))
    reasons = {contestant: missing(contestant) for contestant in who}
    for cell in chosen:
        for contestant, reason in reasons.items():
            if reason is not None:
                results.skip(cell, contestant, reason)
    present = [contestant for contestant in who if reasons[contestant] is None]
    if not present:
        return
    unmeasured = list(chosen)
    try:
        with crews_on(network, present) as crews:
            while unmeasured:
                play(crews, unmeasured[0], how, results)
                del unmeasured[0]
    except UsageError as error:
        for cell in unmeasured:
            for contestant in present:
                results.skip(cell, contestant, str(error))


def main() -> None:
    options = parse(
        "the processor time that a byte on the wire costs: slackline, gloo, OpenMPI, a plain ring",
        parts=PARTS,
        contestants=tuple(Contestant),
    )
    results = Results()
    machine = describe_machine()
    how = QUICK if options.quick else FULL
    for network in NETWORKS:
        chosen: dict[Cell, list[Contestant]] = {}
        for cell, contestant in product(cells_of(network), available_on(network)):
            reason = left_out(
                cell, contestant, options.part, options.contestants, quick=options.quick
            )
            if reason is None:
                chosen.setdefault(cell, []).append(contestant)
            else:
                results.skip(cell, contestant, reason)
        if chosen:
            play_network(network, chosen, how, results)
    report = Report(machine=machine, rows=results.rows(), targets=targets(results))
    report.print(results.tables(), options, notes=results.notes())


if __name__ == "__main__":
    main()
