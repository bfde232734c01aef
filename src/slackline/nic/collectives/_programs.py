"""A member's part of a plan in the form that the engine runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import slackline._native as _native
from slackline.nic.collectives._chunks import chunk_between
from slackline.plan.collective import (
    PLANS,
    Collective,
    CollectivePlan,
    Kind,
    Part,
    cutting,
    names,
)

__all__ = ["BY_HOST", "compile_program", "plan_number", "starts"]

_SPLITS = (Collective.ALL_REDUCE, Collective.REDUCE, Collective.BROADCAST, Collective.BARRIER)
BY_HOST = {name for (_, name), row in PLANS.items() if row.by_host}
"""The names of the plans that depend on the hosts of the ranks."""


def compile_program(
    part: Part, *, longest: int = 0, offloads: bool = False, opens: Sequence[int] = ()
) -> _native.Program:
    """Return one member's part of a plan (a rank's or the aggregator's) in the engine's form.

    `longest` is the longest payload of a frame in bytes; 0 takes the plan's own limit. `offloads`
    lets devices add. `opens` names the starting rank of each chunk, for plans that devices execute.
    """
    chunks, program = part.chunks, part.program
    if part.collective is Collective.ALL_TO_ALL:
        n = part.ranks
        chunks = 2 * n
        program = tuple(
            replace(i, chunk=chunk_between(i.chunk // n, i.chunk % n, n)) for i in program
        )
    rule = cutting(part.helpers)
    return _native.program(
        part.collective,
        _number(part.collective, part.name, part.helpers),
        part.members,
        part.member,
        chunks,
        part.collective in _SPLITS,
        part.forwards,
        part.adds,
        [(int(i.kind), max(i.peer, 0), i.chunk, i.last) for i in program],
        rule.pieces,
        longest or rule.longest_bytes or 0,
        offloads,
        list(opens),
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
    return _number(plan.collective, plan.name, plan.helpers)


def _number(collective: Collective, name: str, helpers: int) -> int:
    """Return a plan's number in frame headers: the position of the name among all names, from 1."""
    if name in BY_HOST:
        return names(collective, helpers=1, by_host=True).index(name) + 1
    return names(collective, helpers=helpers).index(name) + 1
