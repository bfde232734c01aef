"""Measure pipelines over links whose delays come and go: without new plans, reacting, foretelling.

The part "simulated" runs `slackline.sim` with the policy code of `slackline.pipeline` on recorded
and generated traces. The part "real" trains with ranks as processes on this machine, whose engines
delay messages periodically; the stages sleep where they would compute.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import real
from _harness.machine import describe_machine
from _harness.options import Options, parse
from _harness.report import Report, Row, Target
from drive import MODES, Training
from rich.table import Table
from traces import QUICK, TRACES, Trace

PARTS = ("simulated", "real")
POLICIES = ("auto", "adaptra")
WORST_RATIO = 1.01
"""The largest allowed ratio of the time with forecasts to the time of reacting, on any trace."""
GAINING = "every 20 s for 6 s"
"""The trace whose gain has a target."""
LEAST_GAIN = {"auto": 0.5, "adaptra": 2.0}
"""The least gain on the trace GAINING in percent of the time of reacting."""


def simulated(trace: Trace, policy: str) -> Row:
    """Simulate all contestants on a trace; return the mean times of an iteration in ms."""
    print(f"{trace.name}: {policy}", file=sys.stderr)
    found = {mode: Training(trace, policy, mode).run() for mode in MODES}
    react, forecast = found["react"].mean_ms, found["forecast"].mean_ms
    return Row(
        labels={"trace": trace.name, "kind": trace.kind, "policy": policy},
        values={
            **{f"{mode}_ms": round(each.mean_ms, 2) for mode, each in found.items()},
            "forecast_over_react": round(forecast / react, 4),
            "oracle_over_react": round(found["oracle"].mean_ms / react, 4),
            "plans_react": found["react"].plans,
            "plans_forecast": found["forecast"].plans,
            "forecast_us": round(1e6 * found["forecast"].forecast_s / found["forecast"].iterations),
            "models": _models(found["forecast"].news),
        },
    )


def _models(news: list[str]) -> str:
    """Return the links with the models that were used, such as "2-3 periodic"."""
    used: dict[str, list[str]] = {}
    for each in news:
        link, model = each.removeprefix("link ").split(": ")[:2]
        if model != "no forecast" and model not in used.setdefault(link, []):
            used[link].append(model)
    return "; ".join(f"{link} {', '.join(found)}" for link, found in used.items()) or "none"


def targets(rows: list[Row]) -> list[Target]:
    """Return the targets of the simulated rows."""
    found = []
    for row in rows:
        ratio = row.values["forecast_over_react"]
        assert isinstance(ratio, float)
        name = f"{row.labels['trace']}, {row.labels['policy']}"
        found.append(
            Target(
                name=f"{name}: forecast over react",
                target=WORST_RATIO,
                measured=ratio,
                bound="at most",
            )
        )
        if row.labels["trace"] == GAINING:
            least = LEAST_GAIN[str(row.labels["policy"])]
            gain = round(100 * (1 - ratio), 2)
            found.append(Target(name=f"{name}: gain in %", target=least, measured=gain))
    return found


def _table(title: str, rows: list[Row]) -> Table:
    keys = list(dict.fromkeys(key for row in rows for key in row.as_json()))
    table = Table(*(key.replace("_", " ") for key in keys), title=title)
    for row in rows:
        cells = row.as_json()
        table.add_row(*(str(cells.get(key, "-")) for key in keys))
    return table


def main() -> None:
    options: Options = parse("pipelines with forecasts of delays", parts=PARTS)
    machine = describe_machine()
    chosen = [each for each in TRACES if not options.quick or each.name in QUICK]
    rows, judged, tables = [], [], []
    if options.part in (None, "simulated"):
        found = [simulated(trace, policy) for trace in chosen for policy in POLICIES]
        rows += found
        judged += targets(found)
        tables.append(_table("simulated", found))
    if options.part in (None, "real"):
        if options.quick:
            found = [Row(labels={"part": "real"}, skipped="only without --quick")]
            judged.append(real.target(None))
        else:
            found = real.rows()
            judged.append(real.target(found))
        rows += found
        tables.append(_table("real", found))
    Report(machine=machine, rows=rows, targets=judged).print(tables, options)


if __name__ == "__main__":
    main()
