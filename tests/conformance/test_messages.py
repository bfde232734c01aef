"""Tests of messages between two ranks, and of many concurrent operations that the ranks post in
different orders."""

import itertools
import random
from datetime import timedelta

import numpy as np
import pytest
from conformance_vectors import RAILS, at, memory, options, same_bits, vectors

from slackline.nic import Group, Transfer
from slackline.testing import run_ranks
from slackline.testing.reference import Array, reduce_arrays
from slackline.wire import DType, ReduceOp

COUNTS = (0, 1, 17, 1000, 20_011, 300_007)


def message(sender: int, receiver: int, count: int, tag: int) -> Array:
    """Return the data of a message. No two messages are alike."""
    numbers = np.arange(count, dtype=np.int64)
    return numbers * 1009 + sender * 7 + receiver * 77 + tag * 777


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("rail", RAILS)
@pytest.mark.parametrize("registered", [False, True])
def test_every_pair_exchanges_messages_of_every_size(
    registered: bool, rail: str, ranks: int
) -> None:
    def body(group: Group) -> None:
        others = [rank for rank in range(group.size) if rank != group.rank]
        with memory(group, registered=registered) as room:
            posted: list[Transfer] = []
            received = []
            for tag, count in enumerate(COUNTS):
                for peer in others:
                    target = room.empty(count, DType.INT64)
                    received.append((peer, tag, target))
                    posted.append(group.recv(at(target), count, DType.INT64, peer, tag))
                    source = room.hold(message(group.rank, peer, count, tag))
                    posted.append(group.send(at(source), count, DType.INT64, peer, tag))
            for transfer in posted:
                transfer.wait()
            for peer, tag, target in received:
                wanted = message(peer, group.rank, target.size, tag)
                assert same_bits(target, wanted, DType.INT64), f"{peer} to {group.rank}, tag {tag}"

    run_ranks(ranks, body, options=options(rails=(rail,)))


@pytest.mark.parametrize("rail", RAILS)
def test_messages_of_one_tag_arrive_in_the_order_of_their_sends(rail: str) -> None:
    def body(group: Group) -> None:
        counts = [count for _ in range(20) for count in (1, 30_000, 5)]
        if group.rank == 0:
            for number, count in enumerate(counts):
                source = np.full(count, number, np.int32)
                group.send(at(source), count, DType.INT32, 1, 3, blocking=True)
        else:
            for number, count in enumerate(counts):
                target = np.empty(count, np.int32)
                group.recv(at(target), count, DType.INT32, 0, 3, blocking=True)
                assert (target == number).all()

    run_ranks(2, body, options=options(rails=(rail,)))


@pytest.mark.parametrize("rail", RAILS)
@pytest.mark.parametrize("count", [1, 30_000])
def test_a_receive_from_any_source_tells_who_sent(count: int, rail: str) -> None:
    turns = 20

    def body(group: Group) -> None:
        if group.rank > 0:
            for turn in range(turns):
                source = np.full(count, group.rank * 1000 + turn, np.int32)
                group.send(at(source), count, DType.INT32, 0, 9, blocking=True)
            return
        seen = dict.fromkeys(range(1, group.size), 0)
        target = np.empty(count, np.int32)
        for _ in range(turns * (group.size - 1)):
            transfer = group.recv(at(target), count, DType.INT32, None, 9, blocking=True)
            transfer.wait()
            assert transfer.source is not None
            assert (target == transfer.source * 1000 + seen[transfer.source]).all()
            seen[transfer.source] += 1
        assert set(seen.values()) == {turns}

    run_ranks(3, body, options=options(rails=(rail,)))


@pytest.mark.parametrize("rail", RAILS)
def test_receives_from_any_source_may_be_posted_before_anything_is_sent(rail: str) -> None:
    def body(group: Group) -> None:
        if group.rank == 0:
            targets = [np.empty(1000, np.int32) for _ in range(group.size - 1)]
            posted = [group.recv(at(x), 1000, DType.INT32, None, 1) for x in targets]
            group.barrier(blocking=True)
            sources = []
            for transfer, target in zip(posted, targets, strict=True):
                transfer.wait()
                sources.append(transfer.source)
                assert (target == transfer.source).all()
            assert sorted(source or 0 for source in sources) == list(range(1, group.size))
        else:
            group.barrier(blocking=True)
            source = np.full(1000, group.rank, np.int32)
            group.send(at(source), 1000, DType.INT32, 0, 1, blocking=True)

    run_ranks(4, body, options=options(rails=(rail,)))


def post_mixed(group: Group, seed: int, operations: int) -> None:
    """Post tagged reductions, broadcasts and messages concurrently, in an order that differs
    between ranks."""
    n, me = group.size, group.rank
    shared = random.Random(seed)
    mine = random.Random(seed * 100 + me)
    jobs = []
    for tag in range(operations):
        kind = shared.choice(["all_reduce", "all_reduce", "broadcast", "message", "all_gather"])
        jobs.append((tag, kind, shared.choice((*COUNTS[:-1], 150_001)), shared.randrange(n)))
    mine.shuffle(jobs)
    checks: list[tuple[str, Transfer, Array, Array]] = []
    keep = []
    for tag, kind, count, who in jobs:
        priority = mine.randrange(-3, 4)
        inputs = [message(rank, who, count, tag) for rank in range(n)]
        if kind == "all_reduce":
            buffer = inputs[me].copy()
            posted = group.all_reduce(
                at(buffer), at(buffer), count, DType.INT64, ReduceOp.SUM, tag=tag, priority=priority
            )
            wanted = reduce_arrays(inputs, ReduceOp.SUM, DType.INT64)
        elif kind == "broadcast":
            buffer = inputs[me].copy()
            posted = group.broadcast(
                at(buffer), count, DType.INT64, who, tag=tag, priority=priority
            )
            wanted = inputs[who]
        elif kind == "all_gather":
            buffer = np.empty(n * count, np.int64)
            targets = [at(buffer) + rank * count * 8 for rank in range(n)]
            source = inputs[me].copy()
            keep.append(source)
            posted = group.all_gather(
                at(source), targets, [count] * n, DType.INT64, tag=tag, priority=priority
            )
            wanted = np.concatenate(inputs)
        else:
            receiver = (who + 1) % n
            if n == 1 or me not in (who, receiver):
                continue
            buffer = inputs[who].copy() if me == who else np.empty(count, np.int64)
            if me == who:
                posted = group.send(
                    at(buffer), count, DType.INT64, receiver, tag, priority=priority
                )
            else:
                posted = group.recv(at(buffer), count, DType.INT64, who, tag, priority=priority)
            wanted = inputs[who]
        checks.append((f"{kind} {tag}", posted, buffer, wanted))
    mine.shuffle(checks)
    for name, posted, buffer, wanted in checks:
        posted.wait()
        assert same_bits(buffer, wanted, DType.INT64), f"{name} on rank {me}"


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("rail", RAILS)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
def test_ranks_may_post_tagged_operations_in_different_orders(
    seed: int, rail: str, ranks: int
) -> None:
    run_ranks(ranks, lambda group: post_mixed(group, seed, 60), options=options(rails=(rail,)))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("how", ["shm", "tcp", "tiny", "three"])
@pytest.mark.parametrize("seed", range(100, 106))
def test_many_tagged_operations_in_different_orders(seed: int, how: str, ranks: int) -> None:
    settings = {
        "shm": options(rails=("shm",)),
        "tcp": options(rails=("tcp",)),
        "tiny": options(rails=("tcp",), wire_segment_bytes=4096, eager_bytes=4096),
        "three": options(rails=("tcp",), connections=3),
    }
    # On a busy machine eight ranks take longer than the usual 20 s.
    run_ranks(
        ranks,
        lambda group: post_mixed(group, seed, 200),
        options=settings[how],
        timeout=timedelta(minutes=4),
    )


@pytest.mark.parametrize("connections", [1, 3])
def test_tiny_segments_and_windows_lose_nothing(connections: int) -> None:
    how = options(
        rails=("tcp",), wire_segment_bytes=4096, eager_bytes=4096, connections=connections
    )
    run_ranks(3, lambda group: post_mixed(group, 7, 40), options=how)


@pytest.mark.parametrize("rail", RAILS)
def test_a_message_of_many_megabytes_waits_for_a_late_receiver(rail: str) -> None:
    count = 2_000_003

    def body(group: Group) -> None:
        source = vectors(DType.INT64, count, 2)[1 - group.rank]
        if group.rank == 0:
            posted = group.send(at(source), count, DType.INT64, 1, 0)
            group.barrier(blocking=True)
            posted.wait()
        else:
            group.barrier(blocking=True)
            target = np.empty(count, np.int64)
            group.recv(at(target), count, DType.INT64, 0, 0, blocking=True)
            assert same_bits(target, vectors(DType.INT64, count, 2)[1], DType.INT64)

    run_ranks(2, body, options=options(rails=(rail,)))


@pytest.mark.parametrize("connections", [1, 3])
@pytest.mark.parametrize("rail", RAILS)
def test_what_was_sent_before_a_close_arrives(rail: str, connections: int) -> None:
    counts = list(itertools.chain.from_iterable([(1, 20_000, 300)] * 20))

    def body(group: Group) -> None:
        if group.rank == 0:
            for tag, count in enumerate(counts):
                source = message(0, 1, count, tag)
                group.send(at(source), count, DType.INT64, 1, tag, blocking=True)
        else:
            for tag, count in enumerate(counts):
                target = np.empty(count, np.int64)
                group.recv(at(target), count, DType.INT64, 0, tag, blocking=True)
                assert same_bits(target, message(0, 1, count, tag), DType.INT64)

    for _ in range(5):
        run_ranks(2, body, options=options(rails=(rail,), connections=connections))
