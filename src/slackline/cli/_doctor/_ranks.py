"""The program that each rank of `slackline doctor` runs.

    _ranks.py RESULT BUDGET_NS

The ranks measure for about BUDGET_NS nanoseconds. Then rank 0 writes the measurements of all ranks
to the file RESULT, as JSON.
"""

import json
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slackline.cli._doctor._finding import Finding

__all__ = ["main", "run"]


def run(
    budget_ns: int, checks: "Callable[[int], Sequence[Finding]] | None" = None
) -> dict[str, Any]:
    """Measure with all ranks of the job, and return the whole result at every rank.

    The result has the keys "rank" (of the caller), "hosts" (by rank), "rails" (the kinds that
    carried frames), "reports" (a report on each rail of each rank), "paths" (the names of each
    rank's rails), "measured" (a list of `Measured` as JSON) and "checks" (a list of findings for
    each host). `checks` is called once on each host, with the number of ranks there.
    """
    from torch import distributed as dist

    from slackline.backend import group_of
    from slackline.cli._doctor._transfers import measure
    from slackline.records import rails_of

    dist.init_process_group("slackline")
    try:
        group = group_of(dist.group.WORLD)
        mine: dict[str, Any] = {"host": socket.gethostname(), "checks": []}
        mine["measured"] = [each.as_json() for each in measure(group, budget_ns)]
        engine_group: Any = group  # rail_names() is a method of groups on the native engine only
        mine["paths"] = engine_group.rail_names()
        mine["rails"] = rails_of(group.counters())
        mine["reports"] = [asdict(each) for each in engine_group.link_reports()]
        told: list[Any] = [None] * group.size
        dist.all_gather_object(told, mine)
        hosts = [each["host"] for each in told]
        if checks is not None and hosts.index(mine["host"]) == group.rank:
            mine["checks"] = [each.as_json() for each in checks(hosts.count(mine["host"]))]
        dist.all_gather_object(told, mine)
        rank = group.rank
    finally:
        dist.destroy_process_group()
    return {
        "rank": rank,
        "hosts": hosts,
        "rails": sorted({rail for each in told for rail in each["rails"]}),
        "paths": [each["paths"] for each in told],
        "measured": [entry for each in told for entry in each["measured"]],
        "reports": [entry for each in told for entry in each["reports"]],
        "checks": {each["host"]: each["checks"] for each in told if each["checks"]},
    }


def main(result: Path, budget_ns: int) -> None:
    """Measure with all ranks; at rank 0, write the result to the file `result` as JSON."""
    found = run(budget_ns)
    if found["rank"] == 0:
        result.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
