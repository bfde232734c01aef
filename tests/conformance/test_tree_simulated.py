"""The simulator adds the nodes of a tree as the engine and the reference do: sums, frames, their
order, and their bytes."""

from collections.abc import Sequence

import numpy as np
import pytest
from conformance_vectors import Case, at, same_bits, vectors
from tapped_engines import WireFrame, tapped_engines

from slackline.nic.collectives._programs import compile_program, nodes_to_all
from slackline.plan.collective import (
    Collective,
    CollectivePlan,
    Runs,
    SumTree,
    generate,
    tree_part,
    tree_plan,
)
from slackline.sim import Fabric, Host, Operation, simulate_collective
from slackline.testing.reference import Array, PlanArithmetic, reduce_nodes
from slackline.wire import DType, ReduceOp

LENGTHS = ((8,), (4, 4), (5, 8), (3, 3, 2), (1, 6, 1), (2, 2, 2, 2), (1, 4, 1, 1, 1))
SEGMENT_BYTES = 4096
TIMEOUT_NS = 20 * 10**9
Value = tuple[Array, bool]


class Nodes(PlanArithmetic):
    """The arithmetic of the nodes of a tree, which are cut into parts and segments."""

    def __init__(self, operation: Operation, case: Case, nodes: Sequence[Array]) -> None:
        super().__init__(operation.plan, case.op, case.dtype, wide=False)
        self._nodes, self._ranks = nodes, operation.plan.ranks
        self._starts = {}
        start = 0
        for part in range(self._ranks):
            for segment, count in enumerate(operation.segment_counts(part)):
                self._starts[part, segment] = slice(start, start + count)
                start += count

    def contribution(self, rank: int, chunk: int, segment: int) -> Value:
        node, part = divmod(chunk, self._ranks)
        return self._nodes[node][self._starts[part, segment]], False


def runs_of(lengths: Sequence[int]) -> Runs:
    return Runs(SumTree(sum(lengths)), tuple(lengths))


def simulated(
    runs: Runs, case: Case, nodes: Sequence[Array]
) -> tuple[list[Array], dict[tuple[int, int], list[WireFrame]]]:
    """Return the result of every rank, and the frames on every link in their order."""
    plan = tree_plan(runs)
    operation = Operation(
        plan=plan, count=case.count, itemsize=case.dtype.itemsize, limit_bytes=SEGMENT_BYTES
    )
    fabric = Fabric.uniform(plan.members, rate_bps=10**9, latency_ps=10**7)
    run = simulate_collective(
        operation, fabric, arithmetic=Nodes(operation, case, nodes), record=True
    )
    results = [
        np.concatenate([array for chunk in sorted(values) for array, _ in values[chunk]])
        for values in run.values
    ]
    frames: dict[tuple[int, int], list[WireFrame]] = {}
    for frame in run.frames:
        offset = frame.segment * operation.segment_counts(frame.chunk)[0] * operation.itemsize
        found = WireFrame(frame.chunk, offset, frame.payload_bytes, frame.partial)
        frames.setdefault((frame.source, frame.target), []).append(found)
    return results, frames


def engines(
    runs: Runs, case: Case, nodes: Sequence[Array]
) -> tuple[list[Array], dict[tuple[int, int], Sequence[WireFrame]]]:
    """Return the results and the frames of real engines that are joined by sockets."""
    ranks = len(runs.lengths)
    results = [np.empty_like(nodes[0]) for _ in range(ranks)]
    with tapped_engines(ranks, rank_order=False, segment_bytes=SEGMENT_BYTES) as made:
        jobs = []
        for rank, result in enumerate(results):
            mine = [at(nodes[i]) for i, owner in enumerate(runs.owners) if owner == rank]
            chunks = nodes_to_all(rank, runs, mine, at(result), case.count, case.dtype.itemsize)
            program = compile_program(tree_part(runs, rank))
            jobs.append(
                made.groups[rank].run_chunks(
                    *(program, chunks, case.dtype, case.op),
                    *(result.nbytes, -1, 0, TIMEOUT_NS, False),
                )
            )
        for job in jobs:
            if job is not None:
                assert job.wait(-1)
                assert job.failure() is None
    return results, {ends: frames for ends, frames in made.frames.items() if frames}


def by_chunk(frames: Sequence[WireFrame]) -> dict[tuple[int, bool], list[WireFrame]]:
    found: dict[tuple[int, bool], list[WireFrame]] = {}
    for frame in frames:
        found.setdefault((frame.chunk, frame.partial), []).append(frame)
    return found


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("count", [17, 9000])
def test_the_simulator_adds_and_sends_as_the_engine_does(
    lengths: tuple[int, ...], count: int
) -> None:
    runs = runs_of(lengths)
    for dtype in (DType.FLOAT32, DType.BFLOAT16, DType.INT16):
        for op in (ReduceOp.SUM, ReduceOp.AVG):
            case = Case(dtype=dtype, op=op, count=count)
            total = len(runs.owners)
            nodes = vectors(dtype, count, max(total, 2))[:total]
            wanted = reduce_nodes(nodes, runs, op, dtype)
            results, frames = simulated(runs, case, nodes)
            made, on_wire = engines(runs, case, nodes)
            for found in (*results, *made):
                assert same_bits(found, wanted, dtype), case
            assert frames.keys() == on_wire.keys()
            for ends, sent in frames.items():
                assert by_chunk(sent) == by_chunk(on_wire[ends]), f"{case} on link {ends}"


@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_rank_sends_one_part_of_each_node_and_of_the_sum_to_each_other(
    lengths: tuple[int, ...],
) -> None:
    runs, ranks = runs_of(lengths), len(lengths)
    count = 1 << 16
    operation = Operation(plan=tree_plan(runs), count=count * ranks)
    fabric = Fabric.uniform(ranks, rate_bps=10**10, latency_ps=10**6)
    run = simulate_collective(operation, fabric, record=True)
    sent = [0] * ranks
    for frame in run.frames:
        sent[frame.source] += frame.payload_bytes
    nodes = [len(each) for each in runs.nodes]
    assert sent == [(each + 1) * (ranks - 1) * 4 * count for each in nodes]


def test_one_node_of_each_rank_takes_the_time_of_a_mesh() -> None:
    host = Host(rates_bps=(10**9,), latency_ps=10**7, cores=1, reduce_bytes_per_second=10**10)
    fabric = Fabric(hosts=(host,) * 4)

    def makespan(plan: CollectivePlan) -> int:
        operation = Operation(plan=plan, count=100_000, segment_bytes=4096)
        return simulate_collective(operation, fabric).duration_ps

    tree, uneven = tree_plan(runs_of((2, 2, 2, 2))), tree_plan(runs_of((2, 3, 2, 1)))
    mesh = makespan(generate(Collective.ALL_REDUCE, "mesh", 4))
    assert makespan(tree) == mesh
    assert mesh < makespan(uneven) < 2 * mesh
