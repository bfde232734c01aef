"""The NUMA nodes of this host: which processors and NICs they have, and where a rank runs."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path

__all__ = ["SYSFS", "node_of_nic", "nodes", "on_the_nodes_processors", "processors_of_node"]

SYSFS = Path("/sys")


def nodes(sysfs: Path = SYSFS) -> dict[int, frozenset[int]]:
    """Return the processors of each NUMA node by the node's number; empty without NUMA nodes."""
    places = sysfs / "devices/system/node"
    try:
        names = os.listdir(places)  # A glob would take a millisecond of every rank's start.
    except FileNotFoundError:
        return {}
    numbers = sorted(int(name[4:]) for name in names if name[:4] == "node" and name[4:].isdigit())
    return {node: _parse((places / f"node{node}/cpulist").read_text()) for node in numbers}


def node_of_nic(name: str, sysfs: Path = SYSFS) -> int | None:
    """Return the NUMA node that a NIC's slot belongs to; None for a virtual or unknown device."""
    try:
        node = int((sysfs / "class/net" / name / "device/numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def processors_of_node(
    allowed: Set[int], current: int, places: Mapping[int, Set[int]]
) -> frozenset[int]:
    """Return the processors in `allowed` that are on the NUMA node of processor `current`.

    `places` maps each node to its processors. The result is `allowed` if no node has `current`.
    """
    for processors in places.values():
        if current in processors:
            return frozenset(allowed & processors)
    return frozenset(allowed)


@contextmanager
def on_the_nodes_processors(sysfs: Path = SYSFS) -> Iterator[None]:
    """Have threads that are started within the context stay on the NUMA node of the calling thread.

    The calling thread may run on all its processors again afterwards. Nothing changes on a host of
    one node, or for a thread whose processors are all on one node.
    """
    places = nodes(sysfs)
    allowed = os.sched_getaffinity(0)
    if len(places) < 2:
        yield
        return
    os.sched_setaffinity(0, processors_of_node(allowed, _current_processor(), places))
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _current_processor() -> int:
    number: int = ctypes.CDLL(None, use_errno=True).sched_getcpu()
    return number


def _parse(text: str) -> frozenset[int]:
    """Return the numbers of a processor list such as "0-3,8"."""
    found: set[int] = set()
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)
