"""The shortest iteration over all cuts and placements of a small model, by trying each of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations

from slackline.errors import UsageError
from slackline.plan.partition import Cluster, Cut, Profile, evaluate

_BRIEF = 0.01
"""The effort of the search with which each cut is tried first."""


def every_cut(profile: Profile, cluster: Cluster, stages: int) -> Iterator[Cut]:
    """Yield every cut into `stages` stages on every choice of hosts."""
    devices = [place for place, host in enumerate(cluster.hosts) for _ in range(host.devices)]
    layers = len(profile.layers)
    for hosts in sorted(set(permutations(devices, stages))):
        for inner in combinations(range(1, layers), stages - 1):
            yield Cut((0, *inner, layers), hosts)


def exhaustive_ps(profile: Profile, cluster: Cluster, stages: int, microbatches: int) -> int:
    """Return the shortest iteration that the search `auto` finds for any cut that fits.

    Each cut is searched briefly. The whole search then runs for each cut whose lower bound is below
    the best iteration, since no other cut can be shorter.
    """
    tried = []
    for cut in every_cut(profile, cluster, stages):
        try:
            tried.append(evaluate(profile, cluster, cut, microbatches, effort=_BRIEF))
        except UsageError:
            continue  # A stage does not fit its device.
    tried.sort(key=lambda each: each.iteration_ps)
    best = tried[0].iteration_ps
    for each in tried:
        if each.lower_bound_ps < best:
            found = evaluate(profile, cluster, each.cut, microbatches)
            best = min(best, found.iteration_ps)
    return best
