"""Measurements on a wire that loses, repeats, reorders and damages packets.

The lab's own switch applies these faults to the packets; ranks use UDP rails.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import combinations

from _harness.ideal import percent_of_wire
from _harness.ranks import LabRanks
from _harness.summary import percentile
from cases import HOSTS, LOSS_SHARE, SIZES, Wire
from results import Results

from slackline.faults import Plan, parse_all
from slackline.lab import Lab

SIZE = SIZES[2]
CONDITIONS = {
    "no fault": "",
    "1 % loss": "loss 1%",
    "5 % loss, 1 % of each other": "loss 5% duplicate 1% reorder 1% corrupt 1%",
}


def on_every_link(effects: str) -> Plan:
    """Return a fault plan with these effects in both directions of every link."""
    pairs = combinations(range(HOSTS), 2)
    return parse_all([f"link {one}-{other} {effects}" for one, other in pairs])


def lossy(
    lab: Lab, wire: Wire, system: str, ranks: LabRanks, results: Results, rounds: int
) -> None:
    """Measure the same stream under each condition, in turns.

    Then check that an allreduce is bit-identical to the sum without faults.
    """
    ranks.ask("prepare", SIZE.count, SIZE.buffers)
    percents: dict[str, list[float]] = {name: [] for name in CONDITIONS}
    for number in range(rounds):
        order = list(CONDITIONS) if number % 2 == 0 else list(reversed(CONDITIONS))
        for name in order:
            effects = CONDITIONS[name]
            with lab.inject(on_every_link(effects)) if effects else nullcontext():
                spans = ranks.ask("stream", "slackline", 0, 1, SIZE.outstanding, number % 4)
            seconds = (max(s.end_ns for s in spans) - min(s.start_ns for s in spans)) / 1e9
            percents[name].append(
                percent_of_wire(SIZE.nbytes, SIZE.buffers, seconds, HOSTS, wire.rate)
            )
    ranks.ask("prepare_arbitrary", SIZE.count)
    base = percents["no fault"]
    for name, sample in percents.items():
        effects = CONDITIONS[name]
        shares = [one / other for one, other in zip(sample, base, strict=True)]
        same_bits = _same_bits(lab, ranks, effects)
        results.event(
            f"{name} on every link",
            {
                "percent_of_wire": percentile(sample, 50),
                "of_no_fault": percentile(shares, 50),
                "of_no_fault_p10": percentile(shares, 10),
                "of_no_fault_p90": percentile(shares, 90),
                "same_bits": str(same_bits),
                "rounds": rounds,
            },
            wire=str(wire),
            switch=lab.switch,
            system=system,
            bytes=SIZE.nbytes,
        )
        if name == "1 % loss":
            results.target(
                f"{wire}, {SIZE.name}, {system}, {name}: of the loss-free throughput",
                LOSS_SHARE,
                percentile(shares, 50),
            )
        if effects:
            results.target(
                f"{wire}, {SIZE.name}, {system}, {name}: bits as without (1 is yes)",
                1,
                float(same_bits),
            )


def _same_bits(lab: Lab, ranks: LabRanks, effects: str) -> bool:
    with lab.inject(on_every_link(effects)) if effects else nullcontext():
        answers = ranks.ask("arbitrary", 0)
    return all(same for _, same in answers)
