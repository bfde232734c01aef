"""Tests that an aggregator, and circuits of two ranks, add the nodes of a tree with the bits of the
reference, and that the engine's plan does where they cannot."""

import logging
from collections.abc import Iterator

import pytest
from conformance_vectors import (
    FLOATS,
    REDUCTIONS,
    Case,
    at,
    memory,
    options,
    same_bits,
    special_vectors,
    vectors,
)

from slackline.nic import NicOptions, Operation
from slackline.nic._group import NativeGroup
from slackline.nic.aggregator import Aggregator, AggregatorOptions
from slackline.plan.collective import Runs, SumTree
from slackline.testing import run_ranks
from slackline.testing.reference import Array, reduce_nodes
from slackline.wire import DType, ReduceOp

SUMS = (
    *(Case(dtype=DType.FLOAT32, op=ReduceOp.SUM, count=count) for count in (0, 1, 4099, 300_007)),
    *(
        Case(dtype=dtype, op=op, count=4099)
        for dtype in (DType.FLOAT32, DType.BFLOAT16, DType.INT32)
        for op in (ReduceOp.SUM, ReduceOp.AVG)
    ),
)
CASES = (
    *SUMS,
    *(Case(dtype=dtype, op=op, count=17) for dtype, op in REDUCTIONS),
    *(
        Case(dtype=dtype, op=op, count=0, special=True)
        for dtype, op in REDUCTIONS
        if dtype in FLOATS
    ),
)


@pytest.fixture(scope="module", params=["software", "twin"])
def node(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Provide the kind of an aggregation node, and its address."""
    nic = request.param
    node = Aggregator(AggregatorOptions(host="127.0.0.1", port=0, workers=5, nic=nic))
    node.start()
    yield nic, "{}:{}".format(*node.address)
    node.close()


def nodes_of(case: Case, runs: Runs) -> list[list[Array]]:
    total = len(runs.owners)
    every = iter(
        special_vectors(case.dtype, total)
        if case.special
        else vectors(case.dtype, case.count, total)[:total]
    )
    return [[next(every) for _ in nodes] for nodes in runs.nodes]


def reduced_by(
    lengths: tuple[int, ...], cases: tuple[Case, ...], how: NicOptions
) -> list[tuple[str, str]]:
    """Check the bits of all cases on all ranks; return the plans of the cases and their reasons."""
    runs = Runs(SumTree(sum(lengths)), lengths)

    def body(group: NativeGroup) -> tuple[list[Array], list[tuple[str, str]]]:
        results, plans = [], []
        for index, case in enumerate(cases):
            mine = nodes_of(case, runs)[group.rank]
            with memory(group, registered=index % 2 == 0) as room:
                sources = [room.hold(each) for each in mine]
                target = sources[-1] if index % 3 else room.empty(mine[0].size, case.dtype)
                places, size = [at(source) for source in sources], mine[0].size
                operation = Operation.all_reduce_nodes(
                    places, at(target), size, case.dtype, case.op, runs, tag=index % 2 or None
                )
                group.post(operation, blocking=True)
                results.append(target.copy())
            nbytes = mine[0].size * case.dtype.itemsize
            chosen = group.plan_for(nbytes, case.dtype, case.op, runs=runs)
            plans.append((chosen.name, chosen.reason))
        return results, plans

    outcomes = run_ranks(len(lengths), body, options=how)
    for index, case in enumerate(cases):
        nodes = [node for mine in nodes_of(case, runs) for node in mine]
        wanted = reduce_nodes(nodes, runs, case.op, case.dtype)
        for rank, (results, _) in enumerate(outcomes):
            assert same_bits(results[index], wanted, case.dtype), f"{case} on rank {rank}"
    (plans,) = {tuple(plans) for _, plans in outcomes}
    return list(plans)


def through(address: str) -> NicOptions:
    return options(plan="star", aggregator=address, rails=("tcp",))


@pytest.mark.parametrize("lengths", [(1, 1), (4, 4), (2, 2, 1), (2, 2, 2, 2), (1, 1, 1, 1, 1)])
def test_an_aggregator_adds_one_node_of_each_rank(
    node: tuple[str, str], lengths: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    nic, address = node
    caplog.set_level(logging.WARNING, "slackline.nic")
    plans = reduced_by(lengths, CASES if nic == "software" else SUMS, through(address))
    if nic == "software" or len(lengths) == 2:
        assert set(plans) == {("star", "asked for by name")}
        return
    why = (
        f"the circuit of the aggregator adds in rank order, which for {len(lengths)} ranks is not "
        "the order of a tree"
    )
    assert set(plans) == {("tree", why)}
    leaves = sum(lengths)
    assert f"the engine's plan adds the nodes of a tree of {leaves} leaves: {why}" in caplog.text


@pytest.mark.parametrize("node", ["software"], indirect=True)
@pytest.mark.parametrize(
    ("lengths", "why"),
    [
        ((3, 3, 2), "one node of each rank, and rank 0 has 2"),
        ((1, 7), "one node of each rank, and rank 1 has 3"),
        ((4, 2, 2), "nodes of one size, and those of the ranks have several"),
    ],
)
def test_the_engine_adds_other_nodes_and_says_so(
    node: tuple[str, str], lengths: tuple[int, ...], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "slackline.nic")
    plans = reduced_by(lengths, SUMS, through(node[1]))
    assert set(plans) == {("tree", f"the aggregator adds {why}")}
    said = f"the engine's plan adds the nodes of a tree of 8 leaves: the aggregator adds {why}"
    assert [record.message for record in caplog.records].count(said) == len(lengths)


def test_an_aggregator_that_is_slower_than_the_ranks_adds_nothing() -> None:
    """The test asks for a plan by name, since measured times differ from run to run."""
    node = Aggregator(AggregatorOptions(host="127.0.0.1", port=0, workers=2))
    node.start()
    how = options(plan="mesh", aggregator="{}:{}".format(*node.address), rails=("tcp",))
    assert set(reduced_by((2, 2), SUMS, how)) == {("tree", "mesh is asked for by name")}
    node.close()


def test_circuits_of_two_ranks_add_one_node_of_each() -> None:
    plans = reduced_by((4, 4), SUMS, options(nic="twin", rails=("tcp",)))
    ring = "reduce-broadcast", "ranks have devices that add; one addition has no order"
    reasons = dict(zip(SUMS, plans, strict=True))
    for case, plan in reasons.items():
        if case.count and (case.op is ReduceOp.SUM or case.dtype is DType.FLOAT32):
            assert plan == ring, case
        else:
            kind = f"{case.op.name.lower()} of {case.dtype.name.lower()}"
            assert plan == ("tree", f"the devices do not add {kind}")


def test_circuits_of_three_ranks_leave_the_nodes_to_the_engine() -> None:
    plans = reduced_by((2, 2, 1), SUMS, options(nic="twin", rails=("tcp",)))
    why = "the circuits add in rank order, which for 3 ranks is not the order of a tree"
    assert set(plans) == {("tree", why)}
