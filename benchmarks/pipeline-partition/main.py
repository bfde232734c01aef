"""Measure cuts of models into stages on mixed clusters: against even cuts and exhaustive search."""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _harness.machine import describe_machine
from _harness.options import parse
from _harness.report import Report, Row, Target
from partition_clusters import CASES, SEED, draw, draw_small
from partition_exhaustive import exhaustive_ps
from rich.table import Table

from slackline.plan.partition import (
    Cluster,
    Partition,
    Profile,
    evaluate,
    even_cut,
    parse_model,
    partition,
)
from slackline.sim import Channel, Network, simulate

QUICK_CASES = 4
SMALL, QUICK_SMALL = 10, 2
"""The number of small cases that are compared with an exhaustive search."""
SHORTER_PERCENT, GAP_PERCENT = 15, 1


def against_even(quick: bool) -> tuple[list[Row], list[Target]]:
    """Compare each cluster's partition with its even cut, both in the simulator."""
    rows, shorter, off = [], [], []
    for seed in range(SEED, SEED + (QUICK_CASES if quick else CASES)):
        drawn, stages, microbatches = draw(seed)
        profile, cluster = _model(drawn)
        start = time.process_time()
        found = partition(profile, cluster, stages, microbatches)
        seconds = time.process_time() - start
        even = evaluate(profile, cluster, even_cut(profile, cluster, stages), microbatches)
        took, usual = (_simulated_ps(profile, cluster, each) for each in (found, even))
        shorter.append(100 * (1 - took / usual))
        off.append(100 * abs(took / found.iteration_ps - 1))
        rows.append(
            Row(
                labels={"case": seed, "stages": stages, "layers": len(profile.layers)},
                values={
                    "even_ms": usual / 1e9,
                    "iteration_ms": took / 1e9,
                    "shorter_percent": shorter[-1],
                    "above_bound_percent": 100 * found.gap,
                    "planning_processor_s": seconds,
                },
            )
        )
    targets = [
        Target(
            name="shorter than an even cut, mean %",
            target=SHORTER_PERCENT,
            measured=sum(shorter) / len(shorter),
            bound="at least",
        ),
        Target(name="shorter than an even cut, least %", target=0, measured=min(shorter)),
        Target(
            name="planned from simulated iteration, worst %",
            target=0.1,
            measured=max(off),
            bound="at most",
        ),
    ]
    return rows, targets


def against_exhaustive(quick: bool) -> tuple[list[Row], list[Target]]:
    """Compare the partitions of small cases with the best of all cuts and placements."""
    rows, gaps = [], []
    for seed in range(SEED, SEED + (QUICK_SMALL if quick else SMALL)):
        drawn, stages, microbatches = draw_small(seed)
        profile, cluster = _model(drawn)
        found = partition(profile, cluster, stages, microbatches)
        best = exhaustive_ps(profile, cluster, stages, microbatches)
        gaps.append(100 * (found.iteration_ps / best - 1))
        rows.append(
            Row(
                labels={"case": f"small {seed}", "stages": stages, "layers": len(profile.layers)},
                values={"exhaustive_ms": best / 1e9, "gap_percent": gaps[-1]},
            )
        )
    name = "above an exhaustive search, worst %"
    return rows, [Target(name=name, target=GAP_PERCENT, measured=max(gaps), bound="at most")]


def _simulated_ps(profile: Profile, cluster: Cluster, found: Partition) -> int:
    """Return the time of an iteration over links with rates, by the discrete-event simulator."""
    links, cut = cluster.links(), found.cut
    used = [links[above][below] for above, below in pairwise(cut.hosts)]
    channels = tuple(
        Channel(latency_ps=each.latency_ps, bytes_per_second=each.rate_bps // 8)
        if each is not None
        else Channel()
        for each in used
    )
    sizes = tuple(profile.layers[place - 1].output_bytes for place in cut.bounds[1:-1])
    network = Network(forward=channels, backward=channels, message_bytes=sizes)
    return simulate(found.plan, found.scenario, network).makespan_ps


def _model(drawn: dict[str, object]) -> tuple[Profile, Cluster]:
    model = parse_model(json.dumps(drawn), "drawn.json")
    assert model.profile is not None
    assert model.cluster is not None
    return model.profile, model.cluster


def _table(title: str, rows: list[Row]) -> Table:
    keys = list(rows[0].as_json())
    table = Table(*(key.replace("_", " ") for key in keys), title=title)
    for row in rows:
        cells = row.as_json()
        table.add_row(*(_text(cells[key]) for key in keys))
    return table


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Make all measurements and print the report."""
    options = parse(__doc__ or "")
    machine = describe_machine()
    mixed, targets = against_even(options.quick)
    small, more = against_exhaustive(options.quick)
    report = Report(rows=[*mixed, *small], targets=[*targets, *more], machine=machine)
    tables = [_table("against an even cut", mixed), _table("against all cuts", small)]
    report.print(tables, options)


if __name__ == "__main__":
    main()
