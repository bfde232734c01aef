"""Tests of ranks of one host that cannot map each other's memory: the network replaces it.

Ranks are threads of this process. A vast arena fits once into the address space of the process, so
the other ranks cannot map it: the kernel itself refuses.
"""

import gc
import logging
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from address_space import vast_bytes

from slackline.errors import LinkError, PeerError, SlacklineError
from slackline.nic import Group, NativeNic, NicOptions
from slackline.testing import MemoryStore, run_ranks
from slackline.wire import DType, ReduceOp

SMALL = 64 << 20
PATIENCE = timedelta(seconds=40)
COUNT = 300_000
WHY = re.compile(
    r"cannot map [\d.]+ TiB of registered memory of a rank of its host \(Cannot allocate memory\)"
)


@pytest.fixture(autouse=True)
def nothing_vast_is_left() -> Iterator[None]:
    """Free the engines that errors of earlier ranks refer to: their arenas fill the space."""
    gc.collect()
    yield
    gc.collect()


def options(vast: int, *rails: str) -> Any:
    def of(rank: int) -> NicOptions:
        return NicOptions(rails=rails, arena_bytes=vast_bytes() if rank == vast else SMALL)

    return of


def summed(group: Group) -> bytes:
    """Return the bytes of a sum that depends on the order of additions."""
    data = np.random.default_rng(group.rank).standard_normal(COUNT).astype(np.float32)
    at = data.ctypes.data
    group.all_reduce(at, at, COUNT, DType.FLOAT32, ReduceOp.SUM, blocking=True)
    return data.tobytes()


def refused(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "refused" in each.getMessage()]


@pytest.mark.parametrize("vast", [0, 1], ids=["caller's arena", "listener's arena"])
def test_tcp_replaces_memory_that_one_rank_cannot_map(
    vast: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "slackline.nic")

    stores = [MemoryStore(timeout=PATIENCE) for _ in range(2)]

    def body(rank: int) -> tuple[bytes, int, int, bool]:
        nic = NativeNic(options(vast, "shm", "tcp")(rank))
        try:
            first, second = (nic.open_group(store, rank, 2, timeout=PATIENCE) for store in stores)
            sums = summed(first)
            assert summed(second) == sums
            counters = first.counters()
            second.barrier(blocking=True)  # No rank has left before all have counted.
            return sums, counters["tcp_rails"], counters.get("shm_links", 0), second.all_shared
        finally:
            nic.close()

    with ThreadPoolExecutor(2) as ranks:
        found = list(ranks.map(body, range(2)))
    alone = run_ranks(2, summed, options=NicOptions(arena_bytes=SMALL), timeout=PATIENCE)
    assert found == [(alone[0], 1, 0, True)] * 2, "one TCP rail, the same plans and bits"
    warned = [each.getMessage() for each in caplog.records if "replaces" in each.getMessage()]
    assert sorted(text[:14] for text in warned) == ["link to rank 0", "link to rank 1"]
    assert all(WHY.search(text) for text in warned)
    assert refused(caplog) == []


@pytest.mark.parametrize("vast", [0, 1], ids=["caller's arena", "listener's arena"])
def test_without_another_rail_both_ranks_get_the_reason_at_once(
    vast: int, caplog: pytest.LogCaptureFixture
) -> None:
    store, errors = MemoryStore(timeout=PATIENCE), dict[int, tuple[type, str]]()

    def open_and_fail(rank: int) -> None:
        nic = NativeNic(options(vast, "shm")(rank))
        try:
            nic.open_group(store, rank, 2, timeout=PATIENCE)
        except SlacklineError as error:
            errors[rank] = type(error), str(error)
        finally:
            nic.close()

    ranks = [threading.Thread(target=open_and_fail, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(PATIENCE.total_seconds() / 2)
        assert not rank.is_alive(), "it waits in place of failing"
    kinds = {kind for kind, _ in errors.values()}
    assert len(errors) == 2
    assert LinkError in kinds <= {LinkError, PeerError}
    assert all(WHY.search(text) for _, text in errors.values()), errors
    assert refused(caplog) == []


def test_links_that_are_made_later_find_another_rail_too() -> None:
    """Check links of a large group over which messages were posted while they had no rail."""
    ranks, vast = 6, 2

    def body(group: Group) -> bytes:
        received = np.zeros((ranks, COUNT), np.int32)
        sent = np.full(COUNT, group.rank, np.int32)
        others = [rank for rank in range(ranks) if rank != group.rank]
        works = [
            group.recv(received[rank].ctypes.data, COUNT, DType.INT32, rank, 5) for rank in others
        ]
        works += [group.send(sent.ctypes.data, COUNT, DType.INT32, rank, 5) for rank in others]
        for work in works:
            work.wait()
        assert all((received[rank] == rank).all() for rank in others)
        wires = group.counters()["tcp_rails"]
        assert wires == (ranks - 1 if group.rank == vast else 1)
        return summed(group)

    found = run_ranks(ranks, body, options=options(vast, "shm", "tcp"), timeout=PATIENCE)
    assert len(set(found)) == 1
