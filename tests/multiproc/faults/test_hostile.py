"""Tests of whole engines that are attacked by members of their groups and by programs outside.

A healthy group on the same engine goes on with exact sums, and the attacked process uses no more
memory, descriptors and threads than its limits allow.
"""

import os
import random
from collections.abc import Sequence
from functools import partial

import pytest
from fault_job import Job
from hostile_attacks import (
    OVER_MEMORY,
    OVER_TCP,
    OVER_TLS,
    OVER_UDP,
    Attack,
    ask_wrongly,
    half_open,
    hang_up,
    piled_byes,
    pipe_for_a_doorbell,
    random_frames,
    ring_outside,
    silent_memory,
    spoofed_datagrams,
    unbacked_arena,
    unread_probes,
    wrong_hellos,
    wrong_sizes,
)
from hostile_siege import SCRIPT, Siege, Usage, closing, settled, udp_ends

MOST_GROWTH_KIB = 48 << 10
MOST_GUESTS = 256
"""The unauthenticated connections that a listener keeps open at a time."""
SPARE_DESCRIPTORS = 24
"""The descriptors that a rank may use for a moment: sockets to the store, of attempts and links."""
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))]
ATTACKS = {"tcp": OVER_TCP, "tls": OVER_TLS, "udp": OVER_UDP, "shm": OVER_MEMORY}
SOME_ATTACKS = {
    "tls": OVER_TLS,
    "tcp": (wrong_sizes, random_frames, unread_probes, piled_byes),
    "udp": OVER_UDP,
    "shm": (ring_outside, unbacked_arena, pipe_for_a_doorbell),
}


def as_before(first: Usage, now: Usage) -> bool:
    """Return whether a process has no more descriptors and threads than at first."""
    return now.descriptors <= first.descriptors and now.threads <= first.threads


def outlive(job: Job, rails: str, attacks: Sequence[Attack], seed: int) -> None:
    """Attack a group over one kind of rails in a random order, and check what the victim uses.

    `rails` is "shm", "tcp", "udp", or "tls" for TCP through TLS.
    """
    rng = random.Random(seed)
    siege = Siege(job, ("tcp",), tls="require") if rails == "tls" else Siege(job, (rails,))
    siege.attack(
        silent_memory if rails == "shm" else hang_up, rng
    )  # The first attack opens descriptors and threads that stay.
    first = siege.usage()
    for how in rng.sample(attacks, len(attacks)):
        assert siege.attack(how, rng) != "sum", how.__name__
        grown = siege.usage().peak_kib - first.peak_kib
        assert grown <= MOST_GROWTH_KIB, f"{how.__name__}: {grown} KiB"
    left = settled(siege.pid, partial(as_before, first))
    assert as_before(first, left), f"{left} after {first}"
    assert siege.end() == [0, 0]


@pytest.mark.parametrize("rails", SOME_ATTACKS)
def test_a_healthy_group_outlives_hostile_members(job: Job, rails: str) -> None:
    outlive(job, rails, SOME_ATTACKS[rails], 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 7))
@pytest.mark.parametrize("rails", ATTACKS)
def test_a_healthy_group_outlives_every_attack_of_hostile_members(
    job: Job, rails: str, seed: int
) -> None:
    outlive(job, rails, ATTACKS[rails], seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_healthy_group_outlives_strangers(job: Job, seed: int) -> None:
    rng = random.Random(seed)
    siege = Siege(job, ("tcp",))
    siege.progress()
    first = siege.usage()
    for how in (half_open, wrong_hellos):
        with siege.besieged(how, rng):
            now = siege.usage()
            most = first.descriptors + MOST_GUESTS + SPARE_DESCRIPTORS
            assert now.descriptors <= most, f"{how.__name__}: {now}"
            assert now.threads == first.threads
    left = settled(siege.pid, partial(as_before, first))
    assert as_before(first, left), f"{left} after {first}"
    assert left.peak_kib - first.peak_kib <= MOST_GROWTH_KIB
    assert siege.end() == [0, 0]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_outlives_strangers_at_its_aggregator(job: Job, seed: int) -> None:
    rng = random.Random(seed)
    job.start("aggregate", 1, script=SCRIPT, options={})
    host, port = job.told(0, "address")
    siege = Siege(job, ("tcp",), aggregator=f"{host}:{port}", plan="star")
    siege.progress()
    node = job.processes[0].pid
    first = Usage.of(node)
    with closing() as kept:
        ask_wrongly((host, port), rng, kept)
        siege.progress()
        now = Usage.of(node)
        assert now.descriptors <= first.descriptors + MOST_GUESTS + SPARE_DESCRIPTORS, str(now)
    left = settled(node, partial(as_before, first))
    assert as_before(first, left), f"{left} after {first}"
    assert left.peak_kib - first.peak_kib <= MOST_GROWTH_KIB
    assert siege.end() == [0, 0]
    assert [job.told(rank, "plan") for rank in (0, 1)] == ["star", "star"]
    job.tell("end")
    assert job.ends((0,)) == [0]


@pytest.mark.skipif(os.geteuid() != 0, reason="a datagram with a false sender needs root")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_healthy_group_outlives_datagrams_of_strangers(job: Job, seed: int) -> None:
    rng = random.Random(seed)
    siege = Siege(job, ("udp",))
    siege.progress()
    first = siege.usage()
    ends = udp_ends(siege.pid)
    assert ends
    spoofed_datagrams(ends, rng, 20_000)
    siege.progress()
    left = settled(siege.pid, partial(as_before, first))
    assert as_before(first, left), f"{left} after {first}"
    assert left.peak_kib - first.peak_kib <= MOST_GROWTH_KIB
    assert siege.end() == [0, 0]
