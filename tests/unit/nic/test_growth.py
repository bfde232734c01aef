"""Tests that nothing grows in a long job: groups, engines and peers that come and go leave tables,
descriptors and memory as they were, also without the cyclic garbage collector.
"""

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from engine_tables import table_sizes

from slackline.nic import NativeNic, NicOptions
from slackline.nic.connect import _links
from slackline.testing import MemoryStore

TIMEOUT = timedelta(seconds=60)
RESIDENT = 8 << 20
"""The bytes by which resident memory may change: the allocator keeps free pages, and a thread's
stack and arena come and go. 90 % of 1,000 engines, or of 100,000 groups, that lost 100 bytes each
would exceed it."""


def options(rail: str = "shm", **changes: Any) -> NicOptions:
    return NicOptions(arena_bytes=64 << 20, rails=(rail,), **changes)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def together(*bodies: Callable[[], object]) -> None:
    """Run each body in a thread of its own; raise the first error."""
    failures: list[BaseException] = []

    def run(body: Callable[[], object]) -> None:
        try:
            body()
        except BaseException as error:  # The caller's thread raises the error again.
            failures.append(error)

    threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def open_and_close(nics: list[NativeNic]) -> None:
    """Open a group of these engines, run a barrier in it, and close it on every rank."""
    store = MemoryStore()

    def body(rank: int) -> Callable[[], None]:
        def run() -> None:
            group = nics[rank].open_group(store, rank, len(nics), timeout=TIMEOUT)
            group.barrier(blocking=True)
            group.close()

        return run

    together(*map(body, range(len(nics))))


@pytest.fixture
def pair() -> Iterator[list[NativeNic]]:
    nics = [NativeNic(options()) for _ in range(2)]
    yield nics
    for nic in nics:
        nic.close()


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def tables(nics: list[NativeNic]) -> list[int]:
    """Return the sizes of all tables of the engines that could grow with groups or peers."""
    found = [descriptors(), threading.active_count()]
    for nic in nics:
        found += table_sizes(nic)
    return found


def settled(nics: list[NativeNic], before: list[int]) -> None:
    """Wait until no table is larger than these sizes; fail if one stays larger.

    A table may be smaller, since a task of an earlier peer may not have ended before.
    """
    until = time.monotonic() + 10
    while grown(tables(nics), before) and time.monotonic() < until:
        threading.Event().wait(0.01)
    now = tables(nics)
    assert not grown(now, before), (now, before)


def grown(now: list[int], before: list[int]) -> bool:
    return any(size > earlier for size, earlier in zip(now, before, strict=True))


@pytest.mark.parametrize("rail", ["shm", "tcp", "udp"])
@pytest.mark.usefixtures("without_collector")
def test_an_engine_is_given_back_without_the_collector(rail: str) -> None:
    def once() -> list["weakref.ref[NativeNic]"]:
        nics = [NativeNic(options(rail)) for _ in range(2)]
        open_and_close(nics)
        for nic in nics:
            nic.close()
        return [weakref.ref(nic) for nic in nics]

    once()  # The first engine of a process loads modules.
    before = descriptors()
    assert [ref() for ref in once()] == [None, None]
    assert descriptors() == before


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("without_collector")
def test_a_thousand_engines_leave_memory_and_descriptors_as_they_were() -> None:
    before: list[int] = []
    for number in range(1000):
        nic = NativeNic(options())
        open_and_close([nic])
        nic.close()
        del nic
        if number == 100:
            before = [descriptors(), resident()]
    assert descriptors() == before[0]
    assert abs(resident() - before[1]) < RESIDENT


def groups_through_the_nic(nics: list[NativeNic], count: int) -> None:
    open_and_close(nics)
    for number in range(count):
        open_and_close(nics)
        if number == count // 10:
            before, memory = tables(nics), resident()
    settled(nics, before)
    assert resident() - memory < RESIDENT


def test_groups_that_open_and_close_leave_all_tables_as_they_were(pair: list[NativeNic]) -> None:
    groups_through_the_nic(pair, 20)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_thousand_groups_leave_all_tables_as_they_were(pair: list[NativeNic]) -> None:
    groups_through_the_nic(pair, 2000)


def groups_of_the_engine(nics: list[NativeNic], count: int) -> None:
    """Open and close groups on the engines themselves, which know each closed group only until
    the other rank has closed it too."""
    open_and_close(nics)
    engines = [nic._running.engine for nic in nics]
    links = []
    for nic in nics:
        all_links = nic._network._links
        assert all_links is not None
        links.append(next(iter(all_links._by_link)))
    memory = 0
    for epoch in range(1, count + 1):
        groups = [
            engine.open_group(epoch, rank, [-1, links[0]] if rank == 0 else [links[1], -1], True)
            for rank, engine in enumerate(engines)
            if engine is not None
        ]
        for group in groups:
            group.close(0)
        if epoch == count // 10:
            before, memory = tables(nics), resident()
    until = time.monotonic() + 10
    used = [epoch for epoch in range(1, count + 1) if engines[0].uses_epoch(epoch)]  # type: ignore[union-attr]
    while used and time.monotonic() < until:
        threading.Event().wait(0.01)
        used = [epoch for epoch in used if engines[0].uses_epoch(epoch)]  # type: ignore[union-attr]
    assert used == []
    settled(nics, before)
    assert resident() - memory < RESIDENT


def test_an_engine_forgets_groups_that_every_rank_has_closed(pair: list[NativeNic]) -> None:
    groups_of_the_engine(pair, 300)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundred_thousand_groups_of_an_engine_leave_nothing(pair: list[NativeNic]) -> None:
    groups_of_the_engine(pair, 100_000)


def replaced_peers(count: int) -> None:
    """Replace the other rank's engine `count` times, and compare the tables of the one that stays
    after a tenth and at the end."""
    lasting = NativeNic(options())
    try:
        for number in range(count):
            other = NativeNic(options())
            open_and_close([lasting, other])
            other.close()
            del other
            if number == count // 10:
                until = time.monotonic() + 10
                links = lasting._network._links
                assert links is not None
                while links._by_link and time.monotonic() < until:
                    threading.Event().wait(0.01)
                before = tables([lasting])
        settled([lasting], before)
    finally:
        lasting.close()


def test_replaced_peers_leave_all_tables_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_links, "_MOST_DISMISSED", 2)
    replaced_peers(10)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_replaced_peers_leave_all_tables_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_links, "_MOST_DISMISSED", 64)
    replaced_peers(1000)
