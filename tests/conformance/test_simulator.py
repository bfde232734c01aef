"""The simulator executes the plans as the engine and the reference do: sums, frames, their order.

If the steps of two chunks wait for different peers, a plan does not determine the order of their
frames on a link. Where the plan determines all orders, the order on every link is compared as well.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from conformance_vectors import HALVES, RANK_ORDERED, Case, at, same_bits
from tapped_engines import WireFrame, tapped_engines

from slackline.nic.collectives._programs import compile_program
from slackline.plan.collective import Collective, generate, part
from slackline.sim import Fabric, Operation, simulate_collective
from slackline.testing.reference import Array, PlanArithmetic, execute
from slackline.wire import DType, ReduceOp

PLANS = (
    "direct",
    "mesh",
    "ring",
    "reduce-broadcast",
    "halving-doubling",
    "torus",
    "flat-tree",
    "star",
)
IN_ORDER = ("direct", "mesh", "ring", "reduce-broadcast", "star")
"""The plans in which the order of frames on every link does not depend on times of arrival."""
SEGMENT_BYTES = 4096
TIMEOUT_NS = 20 * 10**9

Value = tuple[Array, bool]


class RealValues(PlanArithmetic):
    """The arithmetic of real vectors, which are cut into the chunks of an operation."""

    def __init__(self, operation: Operation, case: Case, *, wide: bool) -> None:
        plan = operation.plan
        super().__init__(plan, case.op, case.dtype, wide=wide)
        self._inputs = case.inputs(plan.ranks)
        self._starts = {}
        start = 0
        for chunk in range(plan.chunks):
            for segment, count in enumerate(operation.segment_counts(chunk)):
                self._starts[chunk, segment] = (start, start + count)
                start += count

    def contribution(self, rank: int, chunk: int, segment: int) -> Value:
        first, end = self._starts[chunk, segment]
        return self._inputs[rank][first:end], False


def operation_of(
    name: str, ranks: int, case: Case, *, wide: bool, ranks_per_host: int | None = None
) -> Operation:
    return Operation(
        plan=generate(Collective.ALL_REDUCE, name, ranks, ranks_per_host=ranks_per_host),
        count=case.inputs(ranks)[0].size,
        itemsize=case.dtype.itemsize,
        partial_itemsize=4 if wide else None,
        limit_bytes=SEGMENT_BYTES,
    )


def simulated(
    operation: Operation, case: Case, *, wide: bool, seed: int = 0
) -> tuple[list[Array], dict[tuple[int, int], list[WireFrame]]]:
    """Return the result of every rank, and the frames on every link in their order."""
    generator = np.random.default_rng(seed)
    fabric = Fabric.uniform(operation.plan.members, rate_bps=10**9, latency_ps=10**7)
    starts = tuple(map(int, generator.integers(0, 10**8, operation.plan.members)))
    arithmetic = RealValues(operation, case, wide=wide)
    run = simulate_collective(
        operation, fabric, arithmetic=arithmetic, starts_ps=starts, record=True
    )
    results = []
    for values in run.values:
        parts = [array for chunk in sorted(values) for array, _ in values[chunk]]
        results.append(np.concatenate(parts))
    frames: dict[tuple[int, int], list[WireFrame]] = {}
    for frame in run.frames:
        full = operation.segment_counts(frame.chunk)[0]
        offset = frame.segment * full * operation.itemsize
        found = WireFrame(frame.chunk, offset, frame.payload_bytes, frame.partial)
        frames.setdefault((frame.source, frame.target), []).append(found)
    return results, frames


def engines_frames(
    name: str, ranks: int, case: Case, *, rank_order: bool, ranks_per_host: int | None = None
) -> tuple[list[Array], dict[tuple[int, int], Sequence[WireFrame]]]:
    """Return the results and frames of real engines that are joined by sockets."""
    members = generate(Collective.ALL_REDUCE, name, ranks).members
    results = [vector.copy() for vector in case.inputs(ranks)]
    parts = [
        part(Collective.ALL_REDUCE, name, ranks, member, ranks_per_host=ranks_per_host)
        for member in range(members)
    ]
    programs = [compile_program(each) for each in parts]
    with tapped_engines(members, rank_order=rank_order, segment_bytes=SEGMENT_BYTES) as engines:
        if members > ranks:
            engines.groups[ranks].serve(programs[ranks], 1)
        jobs = []
        for rank, vector in enumerate(results):
            group, place = engines.groups[rank], at(vector)
            job = group.run(
                programs[rank],
                *(place, place, vector.size, case.dtype, case.op),
                *(vector.nbytes, -1, 0, TIMEOUT_NS, False),
            )
            jobs += [] if job is None else [job]
        for job in jobs:
            assert job.wait(-1)
            assert job.failure() is None
    return results, {ends: frames for ends, frames in engines.frames.items() if frames}


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize("name", PLANS)
def test_the_simulator_computes_the_bits_of_the_reference(name: str, ranks: int) -> None:
    cases = [
        Case(dtype=dtype, op=op, count=5000)
        for dtype in (DType.FLOAT32, DType.BFLOAT16, DType.INT16)
        for op in (ReduceOp.SUM, ReduceOp.AVG)
    ]
    for case in cases:
        for order in ("rank", "any"):
            wide = case.dtype in HALVES and order == "rank"
            operation = operation_of(name, ranks, case, wide=wide)
            inputs = [(vector,) for vector in case.inputs(ranks)]
            wanted = execute(operation.plan, inputs, case.op, case.dtype, order=order)
            for seed in range(2):
                results, _ = simulated(operation, case, wide=wide, seed=seed)
                for found, (expected,) in zip(results, wanted, strict=True):
                    assert same_bits(found, expected, case.dtype), f"{case}, {order}"


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("count", [17, 5000])
@pytest.mark.parametrize("name", PLANS)
def test_the_simulator_sends_the_frames_of_the_engine(name: str, count: int, ranks: int) -> None:
    for dtype in (DType.FLOAT32, DType.BFLOAT16):
        case = Case(dtype=dtype, op=ReduceOp.SUM, count=count)
        rank_order = name in RANK_ORDERED
        wide = dtype in HALVES and rank_order
        operation = operation_of(name, ranks, case, wide=wide)
        expected, on_wire = engines_frames(name, ranks, case, rank_order=rank_order)
        results, frames = simulated(operation, case, wide=wide)
        for found, engines in zip(results, expected, strict=True):
            assert same_bits(found, engines, dtype)
        assert frames.keys() == on_wire.keys()
        for ends, found in frames.items():
            if name in IN_ORDER:
                assert found == list(on_wire[ends]), f"{dtype.name} on link {ends}"
            assert by_chunk(found) == by_chunk(on_wire[ends]), f"{dtype.name} on link {ends}"


def by_chunk(frames: Sequence[WireFrame]) -> dict[tuple[int, bool], list[WireFrame]]:
    """Return the frames of each chunk, before and after the chunk was complete, in their order."""
    found: dict[tuple[int, bool], list[WireFrame]] = {}
    for frame in frames:
        found.setdefault((frame.chunk, frame.partial), []).append(frame)
    return found


@pytest.mark.parametrize(("hosts", "per_host"), [(1, 3), (2, 1), (2, 2), (3, 2), (2, 3)])
def test_engine_simulator_and_reference_agree_on_a_hierarchy(hosts: int, per_host: int) -> None:
    """Compare bits on all ranks, and the frames of each chunk on all links."""
    ranks = hosts * per_host
    for dtype in (DType.FLOAT32, DType.BFLOAT16, DType.INT16):
        for op in (ReduceOp.SUM, ReduceOp.AVG):
            case = Case(dtype=dtype, op=op, count=5003)
            shape = {"ranks_per_host": per_host}
            operation = operation_of("hierarchical", ranks, case, wide=False, **shape)
            wanted = execute(
                operation.plan,
                [(vector,) for vector in case.inputs(ranks)],
                op,
                dtype,
                order="any",
            )
            engines, on_wire = engines_frames(
                "hierarchical", ranks, case, rank_order=False, **shape
            )
            results, frames = simulated(operation, case, wide=False)
            for (expected,), measured, found in zip(wanted, engines, results, strict=True):
                assert same_bits(measured, expected, dtype), f"{case}: engine"
                assert same_bits(found, expected, dtype), f"{case}: simulator"
            assert frames.keys() == on_wire.keys()
            for ends, found_frames in frames.items():
                assert by_chunk(found_frames) == by_chunk(on_wire[ends]), f"{case}, {ends}"
