"""Tests that all_reduces through a software aggregator are bit-identical to the reference."""

from collections.abc import Iterator

import pytest
from conformance_vectors import (
    EVERY_CASE,
    FEW_CASES,
    LONG_CASES,
    SPECIAL_CASES,
    THREAD_MODES,
    at,
    options,
    same_bits,
    thread_modes,
)

from slackline.nic import Group
from slackline.nic.aggregator import Aggregator, AggregatorOptions
from slackline.testing import run_ranks
from slackline.testing.reference import Array


@pytest.fixture(scope="module", params=[1, 0], ids=["cut-through", "store-and-forward"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    node = Aggregator(AggregatorOptions(host="127.0.0.1", port=0, workers=8, onset=request.param))
    node.start()
    yield "{}:{}".format(*node.address)
    node.close()


def check(cases: tuple, ranks: int, address: str) -> None:
    def body(group: Group) -> list[Array]:
        results = []
        for index, case in enumerate(cases):
            mine = case.inputs(ranks)[group.rank].copy()
            place = at(mine)
            with thread_modes((index + 5 * group.rank) % THREAD_MODES):
                group.all_reduce(place, place, mine.size, case.dtype, case.op, blocking=True).wait()
            results.append(mine)
        assert group.plan_for(1 << 20).name == "star"
        return results

    how = options(plan="star", aggregator=address, rails=("tcp",))
    results = run_ranks(ranks, body, options=how)
    for index, case in enumerate(cases):
        expected = case.expected("direct", ranks, "rank")
        for rank in range(ranks):
            assert same_bits(results[rank][index], expected, case.dtype), f"{case} on rank {rank}"


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_an_all_reduce_through_an_aggregator_has_the_bits_of_the_reference(
    address: str, ranks: int
) -> None:
    check((*FEW_CASES, *SPECIAL_CASES), ranks, address)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", range(2, 9))
def test_every_all_reduce_through_an_aggregator_has_the_bits_of_the_reference(
    address: str, ranks: int
) -> None:
    check((*EVERY_CASE, *LONG_CASES, *SPECIAL_CASES), ranks, address)
