"""Tests of sums in a fixed binary tree, and of the plan that carries them out."""

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackline.errors import UsageError
from slackline.plan.collective import (
    MOST_LEAVES,
    Kind,
    Node,
    Runs,
    SumTree,
    check,
    even_runs,
    grid,
    tree_part,
    tree_plan,
)


def whole(leaves: list[str]) -> str:
    """Return the sum of the leaves as a text with brackets, by halving at powers of two."""
    if len(leaves) == 1:
        return leaves[0]
    half = 1 << ((len(leaves) - 1).bit_length() - 1)
    return f"({whole(leaves[:half])}+{whole(leaves[half:])})"


def combined(values: list[str], sums: tuple[int, ...]) -> str:
    """Return the sum as a text with brackets, as the engine combines nodes."""
    waiting: list[str] = []
    for value, count in zip(values, sums, strict=True):
        waiting.append(value)
        for _ in range(count):
            right, left = waiting.pop(), waiting.pop()
            waiting.append(f"({left}+{right})")
    (result,) = waiting
    return result


@st.composite
def runs(draw: st.DrawFn, most_ranks: int = 9, most_leaves: int = 70) -> Runs:
    ranks = draw(st.integers(1, most_ranks))
    leaves = draw(st.integers(ranks, most_leaves))
    cuts = sorted(draw(st.permutations(range(1, leaves)))[: ranks - 1])
    ends = [0, *cuts, leaves]
    return Runs(SumTree(leaves), tuple(b - a for a, b in itertools.pairwise(ends)))


@given(runs())
def test_any_runs_give_the_sum_of_one_rank(drawn: Runs) -> None:
    tree = drawn.tree
    leaves = [f"x{leaf}" for leaf in range(tree.leaves)]
    values = []
    for rank, nodes in enumerate(drawn.nodes):
        spans = [tree.span(node) for node in nodes]
        assert [leaf for span in spans for leaf in span] == list(drawn.of(rank))
        values += [whole(leaves[span.start : span.stop]) for span in spans]
        # No two of a rank's nodes could be one.
        assert len(nodes) <= 2 * tree.leaves.bit_length()
        assert drawn.tree._combine([Node(0, leaf) for leaf in drawn.of(rank)])[1] == list(nodes)
    assert combined(values, drawn.sums) == whole(leaves)
    assert drawn.owners == tuple(sorted(drawn.owners))


def test_the_nodes_of_a_tree_of_five_leaves() -> None:
    tree = SumTree(5)
    assert tree.root == Node(3, 0)
    assert tree.cover(range(5)) == (Node(3, 0),)
    assert tree.cover(range(4, 5)) == (Node(2, 1),)
    assert tree.cover(range(1, 5)) == (Node(0, 1), Node(1, 1), Node(2, 1))
    assert tree.cover(range(2, 2)) == ()
    assert tree.sums([Node(2, 0), Node(2, 1)]) == (0, 1)


@pytest.mark.parametrize(("leaves", "ranks", "nodes"), [(8, 1, 1), (8, 8, 8), (8, 4, 4), (8, 3, 5)])
def test_equal_runs_need_few_nodes(leaves: int, ranks: int, nodes: int) -> None:
    assert len(even_runs(leaves, ranks).owners) == nodes


def test_equal_runs_differ_by_at_most_one() -> None:
    assert even_runs(8, 3).lengths == (3, 3, 2)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: SumTree(0), f"1 to {MOST_LEAVES} leaves, not 0"),
        (lambda: SumTree(MOST_LEAVES + 1), f"not {MOST_LEAVES + 1}"),
        (lambda: SumTree(4).cover(range(2, 5)), "a run of 4 leaves cannot be 2 to 5"),
        (lambda: SumTree(4).sums([Node(1, 0), Node(0, 2)]), "2 nodes are not a tree of 4 leaves"),
        (lambda: SumTree(4).sums([Node(1, 1), Node(1, 0)]), "2 nodes are not a tree"),
        (lambda: Runs(SumTree(4), (2, 3)), "4 leaves together and at least one each, not 2, 3"),
        (lambda: Runs(SumTree(4), (4, 0)), "not 4, 0"),
        (lambda: Runs(SumTree(1), ()), "not none"),
        (lambda: even_runs(2, 3), "2 leaves cannot be given to 3 ranks"),
    ],
)
def test_bad_trees_are_refused(make: Callable[[], object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        make()


@given(runs(most_ranks=6, most_leaves=20))
def test_the_plan_of_any_runs_is_valid_and_claims_no_rank_order(drawn: Runs) -> None:
    plan = tree_plan(drawn)
    verdict = check(plan)
    assert verdict.fault is None
    assert not verdict.rank_ordered
    for rank in range(plan.ranks):
        assert tree_part(drawn, rank).program == plan.programs[rank]


@given(runs(most_ranks=5, most_leaves=12), st.data())
def test_a_plan_without_one_of_its_instructions_is_invalid(
    drawn: Runs, data: st.DataObject
) -> None:
    plan = tree_plan(drawn)
    cells = [(rank, index) for rank, index, _ in plan.cells()]
    rank, index = data.draw(st.sampled_from(cells))
    program = plan.programs[rank][:index] + plan.programs[rank][index + 1 :]
    programs = (*plan.programs[:rank], program, *plan.programs[rank + 1 :])
    assert check(replace(plan, programs=programs)).fault is not None


def test_a_node_that_is_not_buffered_is_named() -> None:
    plan = tree_plan(even_runs(8, 3))
    first = next(index for index, each in enumerate(plan.programs[0]) if each.kind is Kind.BUFFER)
    lacks = plan.programs[0][:first] + plan.programs[0][first + 1 :]
    fault = check(replace(plan, programs=(lacks, *plan.programs[1:]))).fault
    assert fault is not None
    assert "the part of node 2 is not buffered" in fault.reason


def test_the_plan_as_a_grid() -> None:
    assert grid(tree_plan(Runs(SumTree(4), (3, 1)))) == GRID.strip("\n")


GRID = """
     rank 0         rank 1
  0  SEND_1C1       SEND_0C4
  1  SEND_1C3       BUFFER_0C1
  2  BUFFER_1C4     BUFFER_0C3
  3  REDUCE_ALL_C0  REDUCE_ALL_C1
  4  SEND_1C0       SEND_0C1
  5  COPY_1C1       COPY_0C0
"""
