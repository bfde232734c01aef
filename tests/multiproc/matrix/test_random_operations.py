"""Tests of random allreduces under random faults: each result is bit-identical to the reference.

The number in a test's name is the seed of everything except the timing of threads: `pytest
"...[17]"` repeats the scenario of seed 17.
"""

from contextlib import ExitStack

import pytest
from conformance_vectors import THREAD_MODES, at, memory, same_bits, thread_modes
from random_world import OPERATIONS, World, draw_world

from slackline.nic import Group
from slackline.testing import run_ranks
from slackline.testing.reference import Array

QUICK_WORLDS = 250 // OPERATIONS
ALL_WORLDS = 10_000 // OPERATIONS


def play_batch(group: Group, world: World, batch: int) -> dict[int, Array]:
    """Return the results of a batch by tag. All its operations run concurrently, posted in this
    rank's own order."""
    with ExitStack() as stack:
        posted = []
        for place in world.order(group.rank, batch):
            operation = world.batches[batch][place]
            room = stack.enter_context(memory(group, registered=operation.registered))
            mine = operation.inputs(group.size)[group.rank]
            source = room.hold(mine)
            target = source if operation.in_place else room.empty(mine.size, operation.dtype)
            with thread_modes((operation.modes + group.rank) % THREAD_MODES):
                transfer = group.all_reduce(
                    at(source),
                    at(target),
                    operation.count,
                    operation.dtype,
                    operation.op,
                    tag=operation.tag,
                )
            posted.append((operation.tag, transfer, target))
        with thread_modes((world.seed + group.rank) % THREAD_MODES):
            for _, transfer, _ in posted:
                transfer.wait()
        return {tag: target.copy() for tag, _, target in posted}


def play(group: Group, world: World) -> dict[int, Array]:
    results: dict[int, Array] = {}
    for batch in range(len(world.batches)):
        results |= play_batch(group, world, batch)
    group.barrier(blocking=True)
    return results


def check(seed: int) -> None:
    world = draw_world(seed)
    try:
        results = run_ranks(world.ranks, lambda group: play(group, world), options=world.options)
    except Exception as error:
        error.add_note(f"in {world}")
        raise
    for operation in (each for batch in world.batches for each in batch):
        expected = operation.expected(world.ranks)
        for rank, found in enumerate(results):
            assert same_bits(found[operation.tag], expected, operation.dtype), (
                f"{operation} on rank {rank} in {world}"
            )


def test_a_seed_makes_one_world() -> None:
    assert draw_world(5) == draw_world(5)
    assert draw_world(5) != draw_world(6)


@pytest.mark.parametrize("seed", range(QUICK_WORLDS))
def test_random_allreduces_through_random_faults_have_the_right_bits(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(QUICK_WORLDS, ALL_WORLDS))
def test_many_random_allreduces_through_random_faults_have_the_right_bits(seed: int) -> None:
    check(seed)
