"""Measurement of the time that each all_reduce plan takes on the links of a new group.

Every candidate plan is timed at two sizes, for several rounds. The shortest round counts, since
noise only adds time. The slowest rank's time counts, so that all ranks make the same choice later.
The measurement takes some milliseconds for each group.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Protocol

from slackline._lazy import record
from slackline.plan.collective import CostParameters, Timing, expected_ns, split
from slackline.wire import DType

__all__ = [
    "LARGE_BYTES",
    "SHORT_BYTES",
    "chain_parameters",
    "expected_timings",
    "measure",
    "mesh_terms",
    "parameters_from",
    "parameters_of",
    "timings_from",
]

SHORT_BYTES = 64
LARGE_BYTES = 512 << 10
_ROUNDS = {SHORT_BYTES: 12, LARGE_BYTES: 6}
_FEW_ROUNDS = {SHORT_BYTES: 1, LARGE_BYTES: 0}
"""The number of rounds after the first round, if the times serve only to fit the cost model."""
_BUDGET_NS = 100_000_000
"""The time limit for the rounds at one size: slow links get fewer rounds."""
_MOST_DIRECT = 8
"""The largest group in which "direct" is timed at the large size. The bytes of all ranks together
grow with the square of the number of ranks."""
_OVERHEAD_SHARE = 0.25
"""The part of a short message's time that keeps the rank busy; the rest is latency."""
_REDUCE_BYTES_PER_SECOND = 20e9
"""The assumed rate of fp32 sums in cache, which limits an all_reduce on a faster network."""
_FASTEST = 100e9
"""The fastest rate that the model assumes for a port, in bytes per second."""


class Run(Protocol):
    """A function that runs one blocking all_reduce, in place, by a named plan.

    It sums floats, and takes the maximum of integers.
    """

    def __call__(
        self, name: str, address: int, nbytes: int, dtype: DType = DType.FLOAT32
    ) -> None: ...


def measure(names: Sequence[str], run: Run, ranks: int, agree: str = "direct") -> list[int]:
    """Time each all_reduce plan at each size; return the nanoseconds of the slowest rank.

    The ranks agree on the times by the plan `agree`. If `agree` is not "direct", the group connects
    most links later, and one or two rounds are enough, because the times serve only to fit the cost
    model.

    The result is the same on all ranks. The plans take turns, so that a burst of noise does not
    fall on one of them alone. The first round only warms up, unless the links are so slow that
    there is no time for another one. Then "mesh" alone is run twice: its first run takes up to half
    as long again as later runs, and the length of slices follows its time. In more than 8 ranks the
    plan "direct", in which every rank sends its whole buffer to every other rank, is not run at the
    large size: its time is calculated as the time of "mesh" times the ratio of the bytes that the
    two plans send.
    """
    memory = ctypes.create_string_buffer(LARGE_BYTES + 64)  # zeros, which stay zeros when summed
    address = (ctypes.addressof(memory) + 63) // 64 * 64

    def one_round(nbytes: int, plans: Sequence[str]) -> list[int]:
        taken = []
        for name in plans:
            begin = time.perf_counter_ns()
            run(name, address, nbytes)
            taken.append(time.perf_counter_ns() - begin)
        return taken

    many = ranks > _MOST_DIRECT and "mesh" in names
    timed = {
        SHORT_BYTES: list(names),
        LARGE_BYTES: [name for name in names if not (many and name == "direct")],
    }
    best: list[dict[str, int]] = []
    for nbytes, most_rounds in (_ROUNDS if agree == "direct" else _FEW_ROUNDS).items():
        first = one_round(nbytes, timed[nbytes])
        rounds = most_rounds
        if agree == "direct":
            rounds = min(most_rounds, _BUDGET_NS // _largest([sum(first)], run, agree)[0])
        several = [one_round(nbytes, timed[nbytes]) for _ in range(rounds)]
        times = [min(each) for each in zip(*several, strict=True)] or first
        best.append(dict(zip(timed[nbytes], times, strict=True)))
        if rounds == 0 and agree == "direct" and "mesh" in names:
            best[-1]["mesh"] = min(best[-1]["mesh"], *one_round(nbytes, ["mesh"]))
    at_short, at_large = best
    if many and "direct" in at_short:
        # "mesh" sends 2 (n - 1) / n buffers, "direct" sends n - 1.
        more = max(0, at_large["mesh"] - at_short["mesh"])
        at_large["direct"] = at_short["direct"] + more * ranks // 2
    return _largest([each[name] for name in names for each in best], run, agree)


def _largest(values: Sequence[int], run: Run, plan: str) -> list[int]:
    """Return the maximum over all ranks of each value."""
    agreed = (ctypes.c_int64 * len(values))(*values)
    run(plan, ctypes.addressof(agreed), ctypes.sizeof(agreed), DType.INT64)
    return list(agreed)


def timings_from(names: Sequence[str], measured: Sequence[int]) -> tuple[Timing, ...]:
    """Return one Timing for each plan; `measured` is in the order of the result of `measure`."""
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
    """Return the cost model fitted to the timings of "direct" and "mesh".

    The model estimates operations that were not timed.
    """
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
    bytes_per_second = port_ns / max(transfer_ns, port_ns / _FASTEST)
    return parameters_of(latency_ns, bytes_per_second, shared_memory=shared_memory)


def chain_parameters(
    timing: Timing, ranks: int, *, shared_memory: bool, ranks_per_processor: float = 1
) -> CostParameters:
    """Return the cost model fitted to the timing of "reduce-broadcast" in four ranks or more.

    The plan takes 2 (n - 1) steps. Its busiest rank handles 4 messages, and sends or copies the
    buffer twice. Its steps follow one another, so ranks that share a processor do not delay it.
    """
    steps, messages = 2 * (ranks - 1), 4
    latency_ns = max(1, round(timing.short_ns / (steps + messages * _OVERHEAD_SHARE)))
    overhead_ns = round(latency_ns * _OVERHEAD_SHARE)
    reduced_ns = timing.large_bytes * 1e9 / _REDUCE_BYTES_PER_SECOND
    fixed_ns = steps * latency_ns + messages * overhead_ns + reduced_ns
    port_ns = 2 * timing.large_bytes * 1e9
    return parameters_of(
        latency_ns,
        port_ns / max(timing.large_ns - fixed_ns, port_ns / _FASTEST),
        shared_memory=shared_memory,
        ranks_per_processor=ranks_per_processor,
    )


def parameters_of(
    latency_ns: int,
    bytes_per_second: float,
    *,
    shared_memory: bool,
    ranks_per_processor: float = 1,
) -> CostParameters:
    """Return the cost model of a network with this latency and this rate of a port."""
    return CostParameters(
        latency_ns=latency_ns,
        bytes_per_second=bytes_per_second,
        reduce_bytes_per_second=_REDUCE_BYTES_PER_SECOND,
        per_message_overhead_ns=round(latency_ns * _OVERHEAD_SHARE),
        shared_memory=shared_memory,
        ranks_per_processor=ranks_per_processor,
    )


def expected_timings(
    names: Sequence[str], ranks: int, parameters: CostParameters
) -> tuple[Timing, ...]:
    """Return the times that the cost model expects of all_reduce plans, at both sizes."""
    sizes = (SHORT_BYTES, LARGE_BYTES)
    expected = [expected_ns(name, ranks, size, parameters) for name in names for size in sizes]
    return timings_from(names, expected)


@record(frozen=True, slots=True)
class Terms:
    """The work of the busiest rank in the plan "mesh", counted as `estimate` counts it."""

    steps: int
    messages: int
    port_bytes: int
    reduced_bytes: int


def mesh_terms(nbytes: int, ranks: int, *, shared_memory: bool) -> Terms:
    """Return the cost terms of an all_reduce of `nbytes` by the plan "mesh".

    The terms come from a formula, because the whole plan has 4 n (n - 1) instructions. Rank r sends
    chunk i of its data to each rank i, and the sum of chunk r to every rank. Through shared memory,
    rank r copies once each chunk that it sends, and stores the sums that the other ranks send.
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
