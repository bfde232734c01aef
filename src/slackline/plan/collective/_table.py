"""The table of collective plans: each row has the generator and the properties of one plan.

A row's functions name the algorithm's module at the call, which imports the module: a rank alone
runs no algorithm, and most jobs run few.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from slackline._lazy import record
from slackline.errors import UsageError
from slackline.plan.collective import algorithms
from slackline.plan.collective._plan import (
    Collective,
    CollectivePlan,
    Instruction,
    LazyPrograms,
    Part,
    check_ranks,
)

__all__ = ["PLANS", "TREE_NUMBERS", "Generator", "generate", "name_of_number", "names", "part"]


@record(frozen=True, slots=True, kw_only=True)
class Generator:
    """A row of the table: the generator of each member's program, and the plan's properties."""

    program: Callable[..., Iterator[Instruction]]
    """A function (member, ranks, root) -> instructions, never called for a single rank. With
    `by_host` it also takes the number of ranks on each host."""
    chunks: Callable[[int], int]
    """A function from the number of ranks to the number of chunks."""
    rank_ordered: bool = True
    """Whether the plan reduces in rank order; a plan that reduces nothing counts as ordered."""
    helpers: int = 0
    """The number of members that the plan needs besides the ranks."""
    forwards_from: int | None = None
    """The smallest number of ranks with which some member forwards data.

    A member forwards when, for some root, it sends part of a chunk after receiving part of that
    chunk. None: no member forwards, with any number of ranks.
    """
    adds: bool = False
    """Whether some member computes a partial sum, by an ADD, where there are several ranks."""
    by_host: bool = False
    """Whether the plan depends on the number of ranks on each host; the numbers must be equal."""


def _nothing(member: int, *arguments: int) -> Iterator[Instruction]:
    return iter(())


def _one(ranks: int) -> int:
    return 1


def _each(ranks: int) -> int:
    return ranks


def _pairs(ranks: int) -> int:
    return ranks * ranks


PLANS: Mapping[tuple[Collective, str], Generator] = MappingProxyType(
    {
        (Collective.ALL_REDUCE, "direct"): Generator(
            program=lambda *at: algorithms.straight.all_reduce_direct(*at), chunks=_one
        ),
        (Collective.ALL_REDUCE, "mesh"): Generator(
            program=lambda *at: algorithms.straight.all_reduce_mesh(*at),
            chunks=_each,
            forwards_from=2,
        ),
        (Collective.ALL_REDUCE, "ring"): Generator(
            program=lambda *at: algorithms.ring.all_reduce_ring(*at),
            chunks=_each,
            rank_ordered=False,
            forwards_from=2,
            adds=True,
        ),
        (Collective.ALL_REDUCE, "reduce-broadcast"): Generator(
            program=lambda *at: algorithms.chain.all_reduce_chain(*at),
            chunks=_one,
            forwards_from=2,
            adds=True,
        ),
        (Collective.ALL_REDUCE, "halving-doubling"): Generator(
            program=lambda *at: algorithms.halving.all_reduce_halving_doubling(*at),
            chunks=lambda ranks: algorithms.halving.halving_chunks(ranks),
            rank_ordered=False,
            forwards_from=2,
            adds=True,
        ),
        (Collective.ALL_REDUCE, "torus"): Generator(
            program=lambda *at: algorithms.torus.all_reduce_torus(*at),
            chunks=_each,
            rank_ordered=False,
            forwards_from=2,
            adds=True,
        ),
        (Collective.ALL_REDUCE, "flat-tree"): Generator(
            program=lambda *at: algorithms.straight.all_reduce_flat_tree(*at),
            chunks=_one,
            forwards_from=2,
        ),
        (Collective.ALL_REDUCE, "star"): Generator(
            program=lambda *at: algorithms.star.all_reduce_star(*at),
            chunks=_one,
            helpers=1,
            forwards_from=2,
        ),
        (Collective.ALL_REDUCE, "hierarchical"): Generator(
            program=lambda *at: algorithms.hierarchical.all_reduce_hierarchical(*at),
            chunks=_each,
            rank_ordered=False,
            forwards_from=2,
            adds=True,
            by_host=True,
        ),
        (Collective.REDUCE_SCATTER, "mesh"): Generator(
            program=lambda *at: algorithms.straight.reduce_scatter_mesh(*at), chunks=_each
        ),
        (Collective.REDUCE_SCATTER, "ring"): Generator(
            program=lambda *at: algorithms.ring.reduce_scatter_ring(*at),
            chunks=_each,
            rank_ordered=False,
            forwards_from=3,
            adds=True,
        ),
        (Collective.ALL_GATHER, "mesh"): Generator(
            program=lambda *at: algorithms.straight.all_gather_mesh(*at), chunks=_each
        ),
        (Collective.ALL_GATHER, "ring"): Generator(
            program=lambda *at: algorithms.ring.all_gather_ring(*at), chunks=_each, forwards_from=3
        ),
        (Collective.BROADCAST, "direct"): Generator(
            program=lambda *at: algorithms.straight.broadcast_direct(*at), chunks=_one
        ),
        (Collective.BROADCAST, "chain"): Generator(
            program=lambda *at: algorithms.chain.broadcast_chain(*at), chunks=_one, forwards_from=3
        ),
        (Collective.REDUCE, "direct"): Generator(
            program=lambda *at: algorithms.straight.reduce_direct(*at), chunks=_one
        ),
        (Collective.REDUCE, "chain"): Generator(
            program=lambda *at: algorithms.chain.reduce_chain(*at),
            chunks=_one,
            forwards_from=2,
            adds=True,
        ),
        (Collective.GATHER, "direct"): Generator(
            program=lambda *at: algorithms.straight.gather_direct(*at), chunks=_each
        ),
        (Collective.SCATTER, "direct"): Generator(
            program=lambda *at: algorithms.straight.scatter_direct(*at), chunks=_each
        ),
        (Collective.ALL_TO_ALL, "direct"): Generator(
            program=lambda *at: algorithms.straight.all_to_all_direct(*at), chunks=_pairs
        ),
        (Collective.BARRIER, "direct"): Generator(
            program=lambda *at: algorithms.straight.all_reduce_direct(*at), chunks=_one
        ),
        (Collective.BARRIER, "dissemination"): Generator(
            program=lambda *at: algorithms.dissemination.barrier_dissemination(*at),
            chunks=_one,
            forwards_from=3,
            adds=True,
        ),
        (Collective.BARRIER, "chain"): Generator(
            program=lambda *at: algorithms.chain.all_reduce_chain(*at),
            chunks=_one,
            forwards_from=2,
            adds=True,
        ),
        (Collective.POINT_TO_POINT, "direct"): Generator(
            program=lambda *at: algorithms.straight.point_to_point_direct(*at), chunks=_one
        ),
    }
)
"""All plans by collective and name. A barrier is an all_reduce of an empty buffer."""


def names(collective: int, *, helpers: int = 0, by_host: bool = False) -> tuple[str, ...]:
    """Return the names of the collective's plans in the order of the table.

    Plans that need more than `helpers` helpers are left out. Without `by_host`, plans that depend
    on the hosts of the ranks are left out, too.
    """
    known = _known(collective)
    return tuple(
        name
        for (each, name), row in PLANS.items()
        if each is known and row.helpers <= helpers and (by_host or not row.by_host)
    )


TREE_NUMBERS = MappingProxyType({"tree": 15, "star": 14, "mesh": 13})
"""The numbers of all_reduce plans whose sums have the order of a tree, in the headers of frames.

All other plans are numbered from 1 on, in the order of the table. A number has four bits."""


def name_of_number(collective: int, number: int) -> str:
    """Return the name of the plan with a number from the headers of frames.

    Raises IndexError for a number that no plan has.
    """
    for name, each in TREE_NUMBERS.items():
        if number == each and collective == Collective.ALL_REDUCE:
            return name
    if number < 1:
        raise IndexError(f"{number} is not the number of a plan")
    return names(collective, helpers=1, by_host=True)[number - 1]


def generate(
    collective: int,
    name: str,
    ranks: int,
    root: int | None = None,
    *,
    weights: tuple[int, ...] | None = None,
    ranks_per_host: int | None = None,
    lazily: bool = False,
) -> CollectivePlan:
    """Generate the collective's plan called `name`, which is valid by construction.

    `collective` is a Collective or its code. `root` is given for a rooted collective and for no
    other. `weights` has the weight of each chunk; None makes all chunks equal. `ranks_per_host` is
    given for a plan that depends on it and for no other; None stands for 1. The plan of a single
    rank has no instructions. Raises UsageError that names the wrong value. The call takes time in
    proportion to the number of instructions, so callers should reuse the plan. With `lazily` each
    access to a program generates it anew, and the plan keeps no program in memory.
    """
    known, generator = _row(collective, name, ranks, root)
    several = ranks > 1
    members = ranks + (generator.helpers if several else 0)
    arguments = (ranks, root or 0, *_by_host(name, generator, ranks, ranks_per_host))
    programs = LazyPrograms(generator.program if several else _nothing, members, arguments)
    return CollectivePlan(
        name=name,
        collective=known,
        ranks=ranks,
        chunks=generator.chunks(ranks),
        root=root,
        programs=programs if lazily else tuple(programs),
        rank_ordered=generator.rank_ordered or not several,
        helpers=generator.helpers if several else 0,
        weights=weights,
    )


def part(
    collective: int,
    name: str,
    ranks: int,
    member: int,
    root: int | None = None,
    *,
    ranks_per_host: int | None = None,
) -> Part:
    """Return a member's part of the plan that `generate` makes; generate no other member's part.

    The call takes time in proportion to the member's own instructions. Raises UsageError as
    `generate` does, and for a member that the plan does not have.
    """
    known, row = _row(collective, name, ranks, root)
    arguments = (ranks, root or 0, *_by_host(name, row, ranks, ranks_per_host))
    several = ranks > 1
    helpers = row.helpers if several else 0
    if not 0 <= member < ranks + helpers:
        raise UsageError(f"member must be 0 to {ranks + helpers - 1}, not {member}")
    return Part(
        name=name,
        collective=known,
        ranks=ranks,
        helpers=helpers,
        chunks=row.chunks(ranks),
        member=member,
        program=tuple(row.program(member, *arguments)) if several else (),
        forwards=row.forwards_from is not None and ranks >= row.forwards_from,
        adds=row.adds and several,
    )


def _row(collective: int, name: str, ranks: int, root: int | None) -> tuple[Collective, Generator]:
    known = _known(collective)
    row = PLANS.get((known, name))
    if row is None:
        offered = ", ".join(name for each, name in PLANS if each is known)
        raise UsageError(f'{known.label} has no plan "{name}"; its plans are {offered}')
    check_ranks(known, ranks, root)
    return known, row


def _by_host(name: str, row: Generator, ranks: int, ranks_per_host: int | None) -> tuple[int, ...]:
    """Return the further arguments of a row's program; raise UsageError if they are invalid."""
    if not row.by_host:
        if ranks_per_host is not None:
            raise UsageError(f'the plan "{name}" takes no ranks_per_host, not {ranks_per_host}')
        return ()
    each = 1 if ranks_per_host is None else ranks_per_host
    if each < 1 or ranks % each:
        raise UsageError(f"ranks_per_host must be a divisor of {ranks} ranks, not {each}")
    return (each,)


def _known(collective: int) -> Collective:
    try:
        return Collective(collective)
    except ValueError:
        known = ", ".join(f"{each.value} {each.label}" for each in Collective)
        raise UsageError(f"collective must be one of {known}, not {collective}") from None
