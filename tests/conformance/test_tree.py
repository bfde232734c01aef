"""Tests that sums of nodes in a tree are bit-identical to the reference, for every type, on the
engine, in the fabric without a network and in the executor of plans."""

import threading
from collections.abc import Sequence

import numpy as np
import pytest
from conformance_vectors import (
    FLOATS,
    RAILS,
    REDUCTIONS,
    Case,
    at,
    memory,
    options,
    same_bits,
    special_vectors,
    vectors,
)

from slackline.errors import MismatchError, UsageError
from slackline.nic import Group, Operation
from slackline.plan.collective import Runs, SumTree, tree_plan
from slackline.testing import LoopbackFabric, run_ranks
from slackline.testing.reference import Array, execute, numpy_dtype, reduce_nodes
from slackline.wire import DType, ReduceOp

LENGTHS = {
    1: (8,),
    2: (5, 8),
    3: (1, 6, 1),
    4: (2, 2, 2, 2),
    5: (1, 1, 1, 1, 1),
}
CASES = (
    *(Case(dtype=dtype, op=op, count=17) for dtype, op in REDUCTIONS),
    *(Case(dtype=DType.FLOAT32, op=ReduceOp.SUM, count=count) for count in (0, 1, 4099, 300_007)),
    *(
        Case(dtype=dtype, op=op, count=0, special=True)
        for dtype, op in REDUCTIONS
        if dtype in FLOATS
    ),
)


def runs_of(ranks: int) -> Runs:
    lengths = LENGTHS[ranks]
    return Runs(SumTree(sum(lengths)), lengths)


def nodes_of(case: Case, runs: Runs) -> list[list[Array]]:
    """Return the nodes of each rank, whatever the leaves are."""
    total = len(runs.owners)
    if case.special:
        values = special_vectors(case.dtype, total)
    else:
        values = vectors(case.dtype, case.count, total)[:total]
    every = iter(values)
    return [[next(every) for _ in nodes] for nodes in runs.nodes]


def expected(case: Case, runs: Runs) -> Array:
    nodes = [node for mine in nodes_of(case, runs) for node in mine]
    return reduce_nodes(nodes, runs, case.op, case.dtype)


def reduced(group: Group, case: Case, runs: Runs, *, registered: bool, in_place: bool) -> Array:
    mine = nodes_of(case, runs)[group.rank]
    with memory(group, registered=registered) as room:
        sources = [room.hold(node) for node in mine]
        target = sources[-1] if in_place else room.empty(mine[0].size, case.dtype)
        group.post(
            Operation.all_reduce_nodes(
                [at(source) for source in sources],
                at(target),
                mine[0].size,
                case.dtype,
                case.op,
                runs,
            ),
            blocking=True,
        )
        return target.copy()


@pytest.mark.parametrize("rail", RAILS)
@pytest.mark.parametrize("ranks", LENGTHS)
def test_the_engine_adds_nodes_as_the_reference_does(rail: str, ranks: int) -> None:
    runs = runs_of(ranks)

    def body(group: Group) -> list[Array]:
        return [
            reduced(group, case, runs, registered=index % 2 == 0, in_place=index % 3 == 0)
            for index, case in enumerate(CASES)
        ]

    results = run_ranks(ranks, body, options=options(rails=(rail,)))
    for index, case in enumerate(CASES):
        wanted = expected(case, runs)
        for rank in range(ranks):
            assert same_bits(results[rank][index], wanted, case.dtype), f"{case} on rank {rank}"


@pytest.mark.parametrize("ranks", LENGTHS)
def test_the_executor_of_plans_adds_nodes_as_the_reference_does(ranks: int) -> None:
    runs = runs_of(ranks)
    plan = tree_plan(runs)
    for case in CASES:
        outputs = execute(plan, nodes_of(case, runs), case.op, case.dtype)
        for (output,) in outputs:
            assert same_bits(output, expected(case, runs), case.dtype), case


def test_the_fabric_without_a_network_adds_nodes_as_the_reference_does() -> None:
    runs = runs_of(3)
    groups = LoopbackFabric(3).groups
    case = Case(dtype=DType.FLOAT32, op=ReduceOp.AVG, count=17)
    results: dict[int, Array] = {}

    def body(rank: int) -> None:
        nodes = [node.copy() for node in nodes_of(case, runs)[rank]]
        target = np.empty(17, numpy_dtype(case.dtype))
        addresses = [at(node) for node in nodes]
        operation = Operation.all_reduce_nodes(addresses, at(target), 17, case.dtype, case.op, runs)
        groups[rank].post(operation, blocking=True)
        results[rank] = target

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in range(3):
        assert same_bits(results[rank], expected(case, runs), case.dtype)


def test_one_sum_on_any_number_of_ranks() -> None:
    """Add the leaves of each rank there, in the order of the tree, and compare the bits of sums."""
    leaves = vectors(DType.FLOAT32, 4099, 8)

    def node(tree: SumTree, span: range) -> Array:
        if len(span) == 1:
            return leaves[span.start]
        half = 1 << ((len(span) - 1).bit_length() - 1)
        left = node(tree, range(span.start, span.start + half))
        right = node(tree, range(span.start + half, span.stop))
        return np.add(left, right)

    def sum_on(lengths: Sequence[int]) -> set[bytes]:
        runs = Runs(SumTree(8), tuple(lengths))

        def body(group: Group) -> bytes:
            mine = [node(runs.tree, runs.tree.span(each)) for each in runs.nodes[group.rank]]
            target = np.empty_like(mine[0])
            addresses = [at(each) for each in mine]
            args = at(target), target.size, DType.FLOAT32, ReduceOp.SUM
            group.post(Operation.all_reduce_nodes(addresses, *args, runs), blocking=True)
            return target.tobytes()

        return set(run_ranks(len(lengths), body))

    sums = set[bytes]()
    for lengths in ((8,), (4, 4), (1, 7), (3, 3, 2), (1, 6, 1), (2, 2, 2, 2), (5, 1, 1, 1)):
        sums |= sum_on(lengths)
    assert sums == {node(SumTree(8), range(8)).tobytes()}


def test_wrong_runs_are_refused() -> None:
    runs, other = runs_of(2), Runs(SumTree(13), (6, 7))

    def body(group: Group) -> None:
        value = np.zeros(4, np.float32)

        def post(given: Runs, sources: int) -> None:
            args = [at(value)] * sources, at(value), 4, DType.FLOAT32, ReduceOp.SUM
            group.post(Operation.all_reduce_nodes(*args, given), blocking=True)

        mine = len(runs.nodes[group.rank])
        with pytest.raises(UsageError, match=f"rank {group.rank} has {mine} nodes, not 7"):
            post(runs, 7)
        with pytest.raises(UsageError, match="a length for each of 2 ranks, not 3"):
            post(runs_of(3), 1)
        given = runs if group.rank == 0 else other
        with pytest.raises(MismatchError):
            post(given, len(given.nodes[group.rank]))

    run_ranks(2, body)
