"""Tests that every other collective moves and reduces the right data, over every kind of rail (path
to a peer) and for every root."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from conformance_vectors import RAILS, at, memory, options, same_bits, vectors

from slackline.nic import Group
from slackline.testing import run_ranks
from slackline.testing.reference import Array, reduce_arrays
from slackline.wire import DType, ReduceOp

QUICK_RANKS = (1, 2, 3, 4)
EVERY_RANKS = range(1, 9)
QUICK_COUNTS = (0, 1, 17, 1000, 50_021)
EVERY_COUNT = (*QUICK_COUNTS, 3, 4099, 300_007)
MOVED = (DType.UINT8, DType.FLOAT16, DType.FLOAT64)
REDUCED = (
    (DType.FLOAT32, ReduceOp.SUM),
    (DType.BFLOAT16, ReduceOp.AVG),
    (DType.INT8, ReduceOp.PROD),
    (DType.BOOL, ReduceOp.BXOR),
)


@dataclass(frozen=True, kw_only=True)
class Way:
    """The way in which a call is made."""

    in_place: bool
    registered: bool
    blocking: bool


def ways() -> Iterator[Way]:
    """Generate all eight ways of calling, repeatedly."""
    while True:
        for bits in range(8):
            yield Way(in_place=bool(bits & 1), registered=bool(bits & 2), blocking=bool(bits & 4))


def part_counts(count: int, ranks: int) -> list[int]:
    """Return uneven numbers of elements for the ranks, some of them zero."""
    return [0 if rank % 5 == 3 else count + rank for rank in range(ranks)]


def parts(dtype: DType, count: int, ranks: int, owner: int) -> list[Array]:
    """Return a part of the data of `owner` for each rank."""
    source = vectors(dtype, count + ranks, ranks)[owner]
    return [source[:length] for length in part_counts(count, ranks)]


def expect(found: Array, wanted: Array, dtype: DType, what: str) -> None:
    assert same_bits(found, wanted, dtype), f"{what}: {dtype.name} {wanted.size} elements"


def broadcast_and_reduce(group: Group, counts: Sequence[int]) -> None:
    how = ways()
    for root in range(group.size):
        for count in counts:
            for dtype in MOVED:
                way = next(how)
                wanted = vectors(dtype, count, group.size)[root]
                with memory(group, registered=way.registered) as room:
                    mine = group.rank == root
                    buffer = room.hold(wanted) if mine else room.empty(count, dtype)
                    group.broadcast(at(buffer), count, dtype, root, blocking=way.blocking).wait()
                    expect(buffer, wanted, dtype, f"broadcast from {root} on {group.rank}")
            for dtype, op in REDUCED:
                way = next(how)
                inputs = vectors(dtype, count, group.size)
                with memory(group, registered=way.registered) as room:
                    source = room.hold(inputs[group.rank])
                    target = source if way.in_place else room.empty(count, dtype)
                    group.reduce(
                        at(source), at(target), count, dtype, op, root, blocking=way.blocking
                    ).wait()
                    if group.rank == root:
                        expect(target, reduce_arrays(inputs, op, dtype), dtype, f"reduce to {root}")
                    else:
                        assert source.tobytes() == inputs[group.rank].tobytes(), (
                            f"reduce to {root} changed the source of {group.rank}"
                        )


def gather_and_scatter(group: Group, counts: Sequence[int]) -> None:
    n, me = group.size, group.rank
    how = ways()
    for root in range(n):
        for count in counts:
            for dtype in MOVED:
                way = next(how)
                lengths = part_counts(count, n)
                owned = [parts(dtype, count, n, rank)[rank] for rank in range(n)]
                with memory(group, registered=way.registered) as room:
                    source = room.hold(owned[me])
                    targets = (
                        [room.empty(length, dtype) for length in lengths] if me == root else []
                    )
                    addresses = [at(target) for target in targets]
                    if way.in_place and me == root:
                        addresses[me], targets[me] = at(source), source
                    group.gather(
                        at(source), addresses, lengths, dtype, root, blocking=way.blocking
                    ).wait()
                    for rank, target in enumerate(targets):
                        expect(target, owned[rank], dtype, f"gather to {root} from {rank}")
                given = parts(dtype, count, n, root)
                with memory(group, registered=way.registered) as room:
                    sources = [room.hold(part) for part in given] if me == root else []
                    target = room.empty(lengths[me], dtype)
                    if way.in_place and me == root:
                        target = sources[me]
                    group.scatter(
                        [at(source) for source in sources],
                        at(target),
                        lengths,
                        dtype,
                        root,
                        blocking=way.blocking,
                    ).wait()
                    expect(target, given[me], dtype, f"scatter from {root} on {me}")


def gather_and_scatter_all(group: Group, counts: Sequence[int]) -> None:
    n, me = group.size, group.rank
    how = ways()
    for count in counts:
        lengths = part_counts(count, n)
        for dtype in MOVED:
            way = next(how)
            owned = [parts(dtype, count, n, rank)[rank] for rank in range(n)]
            with memory(group, registered=way.registered) as room:
                targets = [room.empty(length, dtype) for length in lengths]
                source = room.hold(owned[me])
                if way.in_place:
                    targets[me][:] = owned[me]
                    source = targets[me]
                group.all_gather(
                    at(source),
                    [at(target) for target in targets],
                    lengths,
                    dtype,
                    blocking=way.blocking,
                ).wait()
                for rank, target in enumerate(targets):
                    expect(target, owned[rank], dtype, f"all_gather from {rank} on {me}")
        for dtype, op in REDUCED:
            way = next(how)
            given = [parts(dtype, count, n, rank) for rank in range(n)]
            with memory(group, registered=way.registered) as room:
                sources = [room.hold(part) for part in given[me]]
                target = sources[me] if way.in_place else room.empty(lengths[me], dtype)
                group.reduce_scatter(
                    [at(source) for source in sources],
                    lengths,
                    at(target),
                    dtype,
                    op,
                    blocking=way.blocking,
                ).wait()
                wanted = reduce_arrays([given[rank][me] for rank in range(n)], op, dtype)
                expect(target, wanted, dtype, f"reduce_scatter {op.name} on {me}")


def exchange_all(group: Group, counts: Sequence[int]) -> None:
    n, me = group.size, group.rank
    how = ways()
    for count in counts:
        for dtype in MOVED:
            way = next(how)
            sent = [vectors(dtype, count + n, n)[rank] for rank in range(n)]
            lengths = [
                [(count + i * j) * ((i + 2 * j) % 4 > 0) for j in range(n)] for i in range(n)
            ]
            lengths = [[min(length, count + n) for length in row] for row in lengths]
            with memory(group, registered=way.registered) as room:
                sources = [room.hold(sent[me][: lengths[me][j]]) for j in range(n)]
                targets = [room.empty(lengths[i][me], dtype) for i in range(n)]
                group.all_to_all(
                    [at(source) for source in sources],
                    lengths[me],
                    [at(target) for target in targets],
                    [lengths[i][me] for i in range(n)],
                    dtype,
                    blocking=way.blocking,
                ).wait()
                for i, target in enumerate(targets):
                    expect(target, sent[i][: lengths[i][me]], dtype, f"all_to_all {i} to {me}")
        group.barrier(blocking=True)


EVERYTHING = (broadcast_and_reduce, gather_and_scatter, gather_and_scatter_all, exchange_all)


@pytest.mark.parametrize("ranks", QUICK_RANKS)
@pytest.mark.parametrize("rail", RAILS)
def test_every_collective_gives_what_it_promises(rail: str, ranks: int) -> None:
    def body(group: Group) -> None:
        for part in EVERYTHING:
            part(group, QUICK_COUNTS)

    run_ranks(ranks, body, options=options(order="rank", rails=(rail,)))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", EVERY_RANKS)
@pytest.mark.parametrize("rail", RAILS)
@pytest.mark.parametrize("segment", [4096, 256 << 10])
def test_every_collective_gives_what_it_promises_at_every_size(
    segment: int, rail: str, ranks: int
) -> None:
    def body(group: Group) -> None:
        for part in EVERYTHING:
            part(group, EVERY_COUNT)

    how = options(
        order="rank",
        rails=(rail,),
        wire_segment_bytes=segment,
        memory_segment_bytes=segment,
        eager_bytes=segment,
    )
    run_ranks(ranks, body, options=how)


@pytest.mark.parametrize("rail", RAILS)
def test_in_any_order_integers_are_reduced_alike(rail: str) -> None:
    def body(group: Group) -> None:
        for count in QUICK_COUNTS:
            given = vectors(DType.INT32, count, group.size)
            wanted = reduce_arrays(given, ReduceOp.SUM, DType.INT32)
            source, target = given[group.rank].copy(), np.zeros(count, np.int32)
            for root in range(group.size):
                group.reduce(
                    at(source), at(target), count, DType.INT32, ReduceOp.SUM, root, blocking=True
                )
                if group.rank == root:
                    expect(target, wanted, DType.INT32, "reduce")
            sources = [at(source)] * group.size
            group.reduce_scatter(
                sources, [count] * group.size, at(target), DType.INT32, ReduceOp.SUM, blocking=True
            )
            expect(target, wanted, DType.INT32, "reduce_scatter")

    run_ranks(4, body, options=options(order="any", rails=(rail,)))


@pytest.mark.parametrize("ranks", [4, 9])
@pytest.mark.parametrize("rail", RAILS)
def test_a_barrier_holds_everyone_until_the_last_has_come(rail: str, ranks: int) -> None:
    """Check both plans: the direct barrier with few ranks, the dissemination barrier with more."""
    arrived: list[int] = []

    def body(group: Group) -> None:
        for turn in range(200 // group.size):
            arrived.append(turn)
            group.barrier(blocking=turn % 2 == 0).wait()
            assert arrived.count(turn) == group.size
            group.barrier(blocking=True)

    run_ranks(ranks, body, options=options(rails=(rail,)))
