"""A member's part of a plan in the form that the engine runs: programs, and the chunks' memory.

The memory of a chunk is a tuple (chunk, source, target, count). A chunk is the part of the data
that one rank owns. Source and target are addresses, 0 where this rank has nothing to read or to
store. The count is in elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import slackline._native as _native
from slackline.plan.collective import (
    PLANS,
    TREE_NUMBERS,
    Collective,
    CollectivePlan,
    Kind,
    Part,
    cutting,
    names,
    split,
)

if TYPE_CHECKING:
    from slackline.plan.collective import Runs

__all__ = [
    "BY_HOST",
    "Chunk",
    "all_to_all",
    "chunk_between",
    "compile_program",
    "each_to_own",
    "nodes_to_all",
    "own_to_each",
    "plan_number",
    "ranks_per_host",
    "starts",
]


Chunk = tuple[int, int, int, int]


def each_to_own(
    rank: int, sources: Sequence[int], counts: Sequence[int], target: int
) -> list[Chunk]:
    """Return the chunks of a scatter, each with a source; this rank's own also has a target."""
    return [
        (i, address, target if i == rank else 0, count)
        for i, (address, count) in enumerate(zip(sources, counts, strict=True))
    ]


def own_to_each(
    rank: int, source: int, targets: Sequence[int], counts: Sequence[int]
) -> list[Chunk]:
    """Return the chunks of a gather, each with a target; this rank's own also has a source."""
    return [
        (i, source if i == rank else 0, address, count)
        for i, (address, count) in enumerate(zip(targets, counts, strict=True))
    ]


def all_to_all(
    rank: int,
    sources: Sequence[int],
    source_counts: Sequence[int],
    targets: Sequence[int],
    target_counts: Sequence[int],
) -> list[Chunk]:
    """Return the chunks of an all_to_all: a source for each receiver, a target for each sender."""
    n = len(sources)
    sent = [
        (
            chunk_between(rank, i, n),
            sources[i],
            targets[rank] if i == rank else 0,
            source_counts[i],
        )
        for i in range(n)
    ]
    return sent + [
        (chunk_between(i, rank, n), 0, targets[i], target_counts[i]) for i in range(n) if i != rank
    ]


def chunk_between(source: int, target: int, ranks: int) -> int:
    """Return the engine's number of the chunk that an all_to_all moves from `source` to `target`.

    The plan numbers all n * n chunks, but a frame has only 65536 chunk numbers. A rank takes part
    in 2 n - 1 chunks, and only these need different numbers. The term (i + j) % n tells apart the
    ranks at the other end, and the lowest bit the two directions between rank i and rank j.
    """
    return 2 * ((source + target) % ranks) + (source < target)


def nodes_to_all(
    rank: int, runs: Runs, sources: Sequence[int], target: int, count: int, itemsize: int
) -> list[Chunk]:
    """Return the chunks of an all_reduce in a tree.

    `sources` are the addresses of this rank's nodes. The parts of each are chunks of their own, as
    are the parts of the result.
    """
    ranks = len(runs.lengths)
    parts = [(low * itemsize, size) for low, size in split(count, ranks, itemsize)]
    mine = iter(sources)
    own = {node: next(mine) for node, owner in enumerate(runs.owners) if owner == rank}
    own.setdefault(0, 0)
    chunks = []
    for part, (offset, size) in enumerate(parts):
        for node, source in own.items():
            at = source + offset if source else 0
            chunks.append((part + ranks * node, at, 0 if node else target + offset, size))
    return chunks


_SPLITS = (Collective.ALL_REDUCE, Collective.REDUCE, Collective.BROADCAST, Collective.BARRIER)
BY_HOST = {name for (_, name), row in PLANS.items() if row.by_host}
"""The names of the plans that depend on the hosts of the ranks."""


def compile_program(
    part: Part,
    *,
    longest: int = 0,
    offloads: bool = False,
    opens: Sequence[int] = (),
    pairwise: Runs | None = None,
    repeated_by: _native.Program | None = None,
) -> _native.Program:
    """Return one member's part of a plan (a rank's or the aggregator's) in the engine's form.

    `longest` is the longest payload of a frame in bytes; 0 takes the plan's own limit. `offloads`
    lets devices add. `opens` names the starting rank of each chunk, for plans that devices execute.
    With `pairwise` the ranks' data are nodes of a tree, one each, and added in its order.
    `repeated_by` repeats an operation whose aggregator is lost.
    """
    chunks, program = part.chunks, part.program
    if part.collective is Collective.ALL_TO_ALL:
        n = part.ranks
        chunks = 2 * n
        program = tuple(
            replace(i, chunk=chunk_between(i.chunk // n, i.chunk % n, n)) for i in program
        )
    rule = cutting(part.helpers)
    runs = part.runs or pairwise
    # The devices of a ring know the number of the plan for which they were opened.
    in_tree = runs is not None and not opens
    number = (
        TREE_NUMBERS[part.name] if in_tree else _number(part.collective, part.name, part.helpers)
    )
    return _native.program(
        part.collective,
        number,
        part.members,
        part.member,
        chunks,
        part.collective in _SPLITS and part.runs is None,
        part.forwards,
        part.adds,
        [(int(i.kind), max(i.peer, 0), i.chunk, i.last) for i in program],
        rule.pieces,
        longest or rule.longest_bytes or 0,
        offloads,
        list(opens),
        None if runs is None else (runs.tree.leaves, runs.owners, runs.sums),
        repeated_by,
    )


def starts(plan: CollectivePlan) -> list[int]:
    """Return the rank that sends each chunk of a ring plan first; it also receives it last."""
    found: dict[int, int] = {}
    for rank, program in enumerate(plan.programs):
        for chunk in range(plan.chunks):
            first = next(instruction for instruction in program if instruction.chunk == chunk)
            if first.kind is Kind.SEND:
                found[chunk] = rank
    return [found[chunk] for chunk in range(plan.chunks)]


def plan_number(plan: CollectivePlan) -> int:
    """Return the number of the plan in the headers of frames."""
    return (
        TREE_NUMBERS[plan.name] if plan.runs else _number(plan.collective, plan.name, plan.helpers)
    )


def _number(collective: Collective, name: str, helpers: int) -> int:
    """Return a plan's number in frame headers: the position of the name among all names, from 1."""
    if name in BY_HOST:
        return names(collective, helpers=1, by_host=True).index(name) + 1
    return names(collective, helpers=helpers).index(name) + 1


def ranks_per_host(hosts: Sequence[object]) -> int | None:
    """Return the number of ranks on each host, by the host of each rank.

    None if ranks are not numbered host by host, or if hosts have different numbers of ranks.
    """
    blocks = [len(list(block)) for _, block in groupby(hosts)]
    alike = len(set(blocks)) == 1 and len(blocks) == len(set(hosts))
    return blocks[0] if alike else None
