"""What the plans take on the links of a new group, measured over the group itself.

Every plan that may run is timed at two sizes, some rounds each; the best round counts, since
noise only adds, and the slowest rank's figure, so that all ranks choose alike ever after. It takes
some milliseconds for each group.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from slackline.plan.collective import CostParameters, Timing, split
from slackline.wire import DType

__all__ = ["LARGE_BYTES", "SHORT_BYTES", "measure", "mesh_terms", "parameters_from", "timings_from"]

SHORT_BYTES = 64
LARGE_BYTES = 512 << 10
_ROUNDS = ((SHORT_BYTES, 12), (LARGE_BYTES, 6))
_BUDGET_NS = 100_000_000
"""For the rounds at one size; a link of long delays is not asked twelve times."""
_OVERHEAD_SHARE = 0.25
"""Of a short message's time, what keeps the rank busy; the rest is the way to the peer."""
_REDUCE_BYTES_PER_SECOND = 20e9
"""Sums of fp32 in cache; bounds the time when the wire does not."""
_FASTEST = 100e9
"""No port is taken to be faster than this, bytes per second."""


class Run(Protocol):
    """One all_reduce to the maximum by the plan called `name`, in place and blocking."""

    def __call__(
        self, name: str, address: int, nbytes: int, dtype: DType = DType.FLOAT32
    ) -> None: ...


def measure(names: Sequence[str], run: Run) -> list[int]:
    """Nanoseconds of each plan at each size, on the slowest rank: the same on all.

    The plans take turns, so that a burst of noise does not fall on one of them. The first round
    warms up, unless the links are so slow that it has to do.
    """
    memory = ctypes.create_string_buffer(LARGE_BYTES + 64)
    address = (ctypes.addressof(memory) + 63) // 64 * 64

    def one_round(nbytes: int) -> list[int]:
        taken = []
        for name in names:
            begin = time.perf_counter_ns()
            run(name, address, nbytes)
            taken.append(time.perf_counter_ns() - begin)
        return taken

    best: list[list[int]] = []
    for nbytes, most_rounds in _ROUNDS:
        first = one_round(nbytes)
        rounds = min(most_rounds, _BUDGET_NS // _largest([sum(first)], run)[0])
        several = [one_round(nbytes) for _ in range(rounds)]
        best.append([min(times) for times in zip(*several, strict=True)] or first)
    return _largest([each for times in zip(*best, strict=True) for each in times], run)


def _largest(values: Sequence[int], run: Run) -> list[int]:
    """The largest of all ranks' values, each by itself."""
    agreed = (ctypes.c_int64 * len(values))(*values)
    run("direct", ctypes.addressof(agreed), ctypes.sizeof(agreed), DType.INT64)
    return list(agreed)


def timings_from(names: Sequence[str], measured: Sequence[int]) -> tuple[Timing, ...]:
    """What `measure` returned, by plan."""
    return tuple(
        Timing(
            name=name,
            short_bytes=SHORT_BYTES,
            short_ns=short_ns,
            large_bytes=LARGE_BYTES,
            large_ns=large_ns,
        )
        for name, short_ns, large_ns in zip(names, measured[::2], measured[1::2], strict=True)
    )


def parameters_from(
    timings: Sequence[Timing], ranks: int, *, shared_memory: bool
) -> CostParameters:
    """The cost model solved for the timings of "direct" and "mesh": for what was not timed."""
    by_name = {timing.name: timing for timing in timings}
    latency_ns = max(1, round(by_name["direct"].short_ns / (1 + 2 * (ranks - 1) * _OVERHEAD_SHARE)))
    overhead_ns = round(latency_ns * _OVERHEAD_SHARE)
    mesh = mesh_terms(LARGE_BYTES, ranks, shared_memory=shared_memory)
    transfer_ns = by_name["mesh"].large_ns - (
        mesh.steps * latency_ns
        + mesh.messages * overhead_ns
        + mesh.reduced_bytes * 1e9 / _REDUCE_BYTES_PER_SECOND
    )
    port_ns = mesh.port_bytes * 1e9
    return CostParameters(
        latency_ns=latency_ns,
        bytes_per_second=port_ns / max(transfer_ns, port_ns / _FASTEST),
        reduce_bytes_per_second=_REDUCE_BYTES_PER_SECOND,
        per_message_overhead_ns=overhead_ns,
        shared_memory=shared_memory,
    )


@dataclass(frozen=True, slots=True)
class Terms:
    """What the busiest rank of a mesh does, as `estimate` counts it from the whole plan."""

    steps: int
    messages: int
    port_bytes: int
    reduced_bytes: int


def mesh_terms(nbytes: int, ranks: int, *, shared_memory: bool) -> Terms:
    """Return the terms of an all_reduce of `nbytes` by "mesh", whose plan is never made for it: it
    has 4 n (n - 1) instructions.

    A rank sends each other rank that one's chunk of its own data, and each its own chunk's sum.
    Through shared memory it copies the first, once each, and stores the others' sums.
    """
    sizes = [size for _, size in split(nbytes, ranks, 1)]
    copied = 2 * (nbytes - min(sizes))
    sent = nbytes + (ranks - 2) * max(sizes)
    return Terms(
        steps=2,
        messages=4 * (ranks - 1),
        port_bytes=copied if shared_memory else sent,
        reduced_bytes=(ranks - 1) * max(sizes),
    )
