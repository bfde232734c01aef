"""Tests of the rendezvous: what all ranks learn, accesses to the store, and wrong descriptors."""

import hashlib
import hmac
import json
import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from slackline.errors import PeerError, UsageError
from slackline.nic import Introduction, NicOptions, Store
from slackline.nic.connect._opening_store import OpeningStore
from slackline.nic.connect._rendezvous import (
    EndpointDescriptor,
    Rendezvous,
    exchange_descriptors,
    host_identity,
)
from slackline.testing import MemoryStore, run_ranks

MINE = EndpointDescriptor(
    engine="0" * 32,
    host=host_identity(),
    interfaces=(),
    chosen=False,
    options=NicOptions().agreed(),
)


class CountingStore(MemoryStore):
    """A store that counts the accesses of each thread."""

    def __init__(self) -> None:
        super().__init__()
        self.accesses: Counter[str] = Counter()

    def set(self, key: str, value: str, /) -> None:
        self.accesses[threading.current_thread().name] += 1
        super().set(key, value)

    def get(self, key: str, /) -> bytes:
        self.accesses[threading.current_thread().name] += 1
        return super().get(key)


def changed(**fields: Any) -> str:
    return json.dumps(MINE.told() | fields)


def descriptor(rank: int) -> EndpointDescriptor:
    return replace(MINE, engine=f"engine {rank}")


def meeting(store: Store, rank: int, size: int) -> OpeningStore:
    return OpeningStore(store, rank, size, limit_s=20)


def run(size: int, body: Callable[[int], Any]) -> None:
    """Call `body` with each rank, in threads that are named after their ranks."""
    threads = [threading.Thread(target=body, args=(rank,), name=str(rank)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(("size", "of_rank_0", "of_another"), [(4, 6, 6), (5, 8, 3), (40, 43, 3)])
def test_accesses_to_the_store_grow_in_proportion_to_the_ranks(
    size: int, of_rank_0: int, of_another: int
) -> None:
    store = CountingStore()
    found: dict[int, Rendezvous] = {}

    def join(rank: int) -> None:
        found[rank] = exchange_descriptors(meeting(store, rank, size), descriptor(rank))

    run(size, join)
    assert store.accesses == {str(rank): of_another if rank else of_rank_0 for rank in range(size)}
    assert [found[rank] for rank in range(size)] == [found[0]] * size
    assert found[0].descriptors == tuple(map(descriptor, range(size)))


def test_all_ranks_take_the_first_draw_of_epochs_that_none_of_them_uses() -> None:
    store = MemoryStore()
    found: dict[int, Rendezvous] = {}
    masks = {0: 0b0, 1: 0b10, 2: 0b100}  # rank 1 has the group's fallback epoch, rank 2 a second

    def join(rank: int) -> None:
        found[rank] = exchange_descriptors(
            meeting(store, rank, 3), descriptor(rank), reserve=lambda epochs: masks[rank]
        )

    run(3, join)
    assert [each.draw for each in found.values()] == [2, 2, 2]
    one = found[0]
    assert {each.epoch for each in found.values()} == {one.epochs(2)[0]} != {one.epochs(0)[0]}
    assert len({epoch for draw in range(4) for epoch in one.epochs(draw)}) == 8


class TogetherStore(CountingStore):
    """A store that returns several values in one access."""

    def get_together(self, keys: list[str], /) -> list[bytes]:
        self.accesses[threading.current_thread().name] += 1
        return [MemoryStore.get(self, key) for key in keys]


def introduction(rank: int, heard: dict[tuple[int, int], str]) -> Introduction:
    def check(peer: int, said: str) -> None:
        heard[rank, peer] = said

    return Introduction(opening="first", said=f"I am {rank}", check=check)


@pytest.mark.parametrize(
    ("size", "of_rank_0", "of_another"), [(1, 2, 2), (8, 2, 2), (16, 2, 2), (17, 3, 2)]
)
def test_ranks_that_introduce_themselves_meet_in_one_exchange(
    size: int, of_rank_0: int, of_another: int
) -> None:
    store, heard, found = TogetherStore(), dict[tuple[int, int], str](), dict[int, Rendezvous]()

    def join(rank: int) -> None:
        found[rank] = exchange_descriptors(
            meeting(store, rank, size),
            descriptor(rank),
            b"the key of the job",
            introduction=introduction(rank, heard),
        )

    run(size, join)
    assert store.accesses == {str(rank): of_another if rank else of_rank_0 for rank in range(size)}
    assert heard == {(me, peer): f"I am {peer}" for me in range(size) for peer in range(size)}
    assert [found[rank] for rank in range(size)] == [found[0]] * size
    assert found[0].descriptors == tuple(map(descriptor, range(size)))
    numbers = [bytes.fromhex(json.loads(store.get(f"slackline/rank/{r}"))[0]) for r in range(size)]
    mixed = hmac.new(b"the key of the job", b"".join(numbers), hashlib.sha256).digest()
    assert found[0].secret == mixed
    assert len(set(numbers)) == size


def test_epochs_of_an_opening_with_a_name_differ_from_those_of_another_name() -> None:
    named = [Rendezvous(secret=b"", descriptors=(), opening=name) for name in ("1", "2")]
    assert len({epoch for each in named for draw in range(4) for epoch in each.epochs(draw)}) == 16


@pytest.mark.parametrize("stored", ["{", "[]", '["x", "", ""]', '["", "", 7]', changed(), "7"])
def test_a_rank_that_does_not_introduce_itself_is_named(stored: str) -> None:
    store = TogetherStore()
    store.set("slackline/rank/1", stored)
    with pytest.raises(UsageError, match="the descriptor of rank 1 in the rendezvous store") as why:
        exchange_descriptors(meeting(store, 0, 2), MINE, introduction=introduction(0, {}))
    assert (why.value.rank, why.value.peer) == (0, 1)


def test_a_descriptor_that_comes_again_is_not_decoded_again() -> None:
    store = MemoryStore()
    found = list[Rendezvous]()

    def join(rank: int) -> None:
        for _ in range(2):
            found.append(exchange_descriptors(meeting(store, rank, 2), descriptor(rank)))

    run(2, join)
    first, *others = [each.descriptors for each in found]
    assert all(a is b for each in others for a, b in zip(first, each, strict=True))


def test_a_group_whose_every_draw_is_taken_is_refused_on_every_rank() -> None:
    store = MemoryStore()
    found: dict[int, str] = {}

    def join(rank: int) -> None:
        with pytest.raises(UsageError) as error:
            exchange_descriptors(
                meeting(store, rank, 2), descriptor(rank), reserve=lambda epochs: 0b01010101 << rank
            )
        found[rank] = str(error.value)

    run(2, join)
    text = (
        "all 4 numbers drawn for the group belong to other groups of its ranks: open the group "
        "again"
    )
    assert found == {0: text, 1: text}


def test_ranks_with_other_kernels_are_refused_on_every_rank() -> None:
    store = MemoryStore()
    found = set[str]()

    def join(rank: int) -> None:
        with pytest.raises(UsageError) as error:
            exchange_descriptors(
                meeting(store, rank, 2), replace(descriptor(rank), kernels=f"{rank:04x}")
            )
        found.add(str(error.value))

    run(2, join)
    assert found == {
        "rank 1 would give other bits than rank 0: some reductions: install the same build of "
        "slackline on every host"
    }


@pytest.mark.parametrize("stored", ["{", changed(engine=7), "\x00\u00e9"])
def test_every_rank_of_a_large_group_names_a_wrong_descriptor(stored: str) -> None:
    store = MemoryStore()
    store.set("slackline/rank/4", stored)
    found: dict[int, UsageError] = {}

    def join(rank: int) -> None:
        with pytest.raises(UsageError, match="descriptor of rank 4 in the rendezvous") as error:
            exchange_descriptors(meeting(store, rank, 5), descriptor(rank))
        found[rank] = error.value

    run(4, join)
    assert {(rank, error.rank, error.peer) for rank, error in found.items()} == {
        (rank, rank, 4) for rank in range(4)
    }
    assert len({str(error) for error in found.values()}) == 1


@pytest.mark.parametrize(
    ("together", "why"),
    [
        ("[", "Expecting value: line 1 column 2 (char 1)"),
        ('["{}"]', "a list of 5 descriptors was expected, not ['{}']"),
        ("[1, 2, 3, 4, 5]", "'int' object has no attribute 'encode'"),
    ],
)
def test_a_list_of_descriptors_that_is_none_is_an_error(together: str, why: str) -> None:
    store = MemoryStore()
    store.set("slackline/secret", "00" * 32)
    store.set("slackline/ranks", together)
    with pytest.raises(UsageError) as error:
        exchange_descriptors(meeting(store, 1, 5), MINE)
    assert str(error.value) == f"the list of descriptors in the rendezvous store is wrong: {why}"


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        ("{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("[]", "an object was expected, not []"),
        (changed(interfaces="eth0"), "interfaces: a list was expected, not 'eth0'"),
        (changed(interfaces=[["eth0"]]), "interface: ['eth0']"),
        (changed(options=7), "options must be of type dict, not 7"),
        (changed(engine=7), "engine must be of type str, not 7"),
        (changed(device_bytes="7"), "device_bytes must be of type int, not '7'"),
    ],
)
def test_a_descriptor_that_is_none_is_named_with_its_rank(stored: str, why: str) -> None:
    store = MemoryStore()
    store.set("slackline/rank/1", stored)
    with pytest.raises(UsageError) as error:
        exchange_descriptors(meeting(store, 0, 2), MINE)
    assert str(error.value) == f"the descriptor of rank 1 in the rendezvous store is wrong: {why}"
    assert (error.value.rank, error.value.peer) == (0, 1)


def test_a_field_that_is_missing_is_named() -> None:
    told = MINE.told()
    del told["host"]
    store = MemoryStore()
    store.set("slackline/rank/1", json.dumps(told))
    with pytest.raises(UsageError, match="missing 1 required keyword-only argument: 'host'"):
        exchange_descriptors(meeting(store, 0, 2), MINE)


def test_the_fullest_host_gives_the_ranks_of_a_processor() -> None:
    def ranks(**hosts: list[int]) -> float:
        descriptors = tuple(
            replace(MINE, host=host, processors=processors)
            for host, allowed in hosts.items()
            for processors in allowed
        )
        return Rendezvous(secret=b"", descriptors=descriptors).ranks_per_processor

    assert ranks(a=[0xFF, 0xFF], b=[0xFF, 0xFF]) == 1
    assert ranks(a=[0b11] * 5, b=[0xFF]) == 2.5
    assert ranks(a=[1 << rank for rank in range(8)]) == 1, "each rank has a processor of its own"
    assert ranks(a=[0b0110, 0b0010, 0b0110, 0b1000, 0b0010, 0b0010]) == 2
    with pytest.raises(ValueError, match="processors must name one or more, not 0"):
        ranks(a=[0])


def test_a_host_whose_boot_id_is_masked_has_an_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Path.read_text

    def masked(path: Path, *given: Any, **named: Any) -> str:
        if path.name == "boot_id":
            raise FileNotFoundError(path)
        return read(path, *given, **named)

    usual = host_identity()
    monkeypatch.setattr(Path, "read_text", masked)
    assert host_identity() == host_identity() != usual
    assert host_identity().startswith(f"{os.uname().nodename} ")


class ClonedStore(MemoryStore):
    """A store in which rank 1 has rank 0's host identity, but an engine that is not on the host."""

    def set(self, key: str, value: str, /) -> None:
        if key == "slackline/rank/1":
            value = json.dumps({**json.loads(value), "engine": "f" * 32})
        super().set(key, value)


def test_a_rank_of_a_cloned_machine_is_an_error_that_says_what_to_do() -> None:
    options = NicOptions(rails=("shm",), arena_bytes=64 << 20)
    with pytest.raises(PeerError, match=r"set SLACKLINE_RAILS=tcp on all ranks$"):
        run_ranks(
            2,
            lambda group: group.size,
            options=options,
            store=ClonedStore(),
            timeout=timedelta(seconds=5),
        )
