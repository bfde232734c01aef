"""Tests of connections that corrupt, cut or repeat data: typed errors or correct results, never
wrong data."""

import threading
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from fault_proxy import ProxiedStore, Tamper, cut, flip
from waiting import until

from slackline.errors import SlacklineError
from slackline.nic import Group, NicOptions
from slackline.testing import run_ranks
from slackline.wire import DType, ReduceOp

COUNT = 1_000_003
FAR = 600_000
"""An offset in the middle of the data of one connection."""


def options(connections: int = 1, eager_bytes: int = 256 << 10) -> NicOptions:
    return NicOptions(
        rails=("tcp",),
        interfaces=("127.0.0.1/8",),
        plan="mesh",
        order="rank",
        arena_bytes=64 << 20,
        connections=connections,
        eager_bytes=eager_bytes,
        checksums="all",
        wire_segment_bytes=64 << 10,
    )


@pytest.fixture
def stores() -> Iterator[list[ProxiedStore]]:
    """Collect stores, and close them at the end of the test."""
    opened: list[ProxiedStore] = []
    yield opened
    for store in opened:
        store.close()


def outcome(
    group: Group, store: ProxiedStore, everyone_knows: threading.Barrier
) -> tuple[SlacklineError | None, dict[str, int]]:
    """Return the error and the counters of an all_reduce of COUNT elements. The result is compared
    bit by bit if the all_reduce succeeded."""
    data = np.arange(COUNT, dtype=np.float32) * (group.rank + 1)
    at = data.ctypes.data
    store.arm(group)
    error = None
    try:
        group.all_reduce(at, at, COUNT, DType.FLOAT32, ReduceOp.SUM, tag=2, blocking=True)
        wanted = np.arange(COUNT, dtype=np.float32)
        assert data.tobytes() == (wanted + wanted * 2).tobytes()
    except SlacklineError as caught:
        error = caught
    everyone_knows.wait(60)
    counters = dict(group.counters())
    everyone_knows.wait(60)  # no rank has closed yet
    return error, counters


def through(
    tamper: Tamper, stores: list[ProxiedStore], how: NicOptions
) -> list[tuple[SlacklineError | None, dict[str, int]]]:
    stores.append(ProxiedStore(tamper))
    everyone_knows = threading.Barrier(2)
    return run_ranks(
        2,
        lambda group: outcome(group, stores[-1], everyone_knows),
        options=how,
        store=stores[-1].of,
    )


@pytest.mark.parametrize(
    "at",
    [
        FAR,
        FAR + 13_007,
        *(pytest.param(FAR + k * 13_007, marks=pytest.mark.slow) for k in (2, 3, 4)),
    ],
)
@pytest.mark.parametrize("way", ["there", "back"])
def test_a_flipped_byte_ends_the_connection_and_another_one_carries_on(
    way: str, at: int, stores: list[ProxiedStore]
) -> None:
    results = through(flip(at, 0, way), stores, options())
    assert [error for error, _ in results] == [None, None]
    assert [counters["rails_lost"] for _, counters in results] == [1, 1]
    assert sum(counters["frames_resent"] for _, counters in results) > 0


@pytest.mark.parametrize("at", [FAR, FAR + 40_000, 70_000])
@pytest.mark.parametrize("way", ["there", "back"])
def test_a_connection_that_is_closed_on_the_way_is_made_again(
    way: str, at: int, stores: list[ProxiedStore]
) -> None:
    results = through(cut(at, 0, way), stores, options())
    assert [error for error, _ in results] == [None, None]
    assert [counters["rails_lost"] for _, counters in results] == [1, 1]


@pytest.mark.parametrize("at", [FAR, pytest.param(FAR + 40_000, marks=pytest.mark.slow), 70_000])
@pytest.mark.parametrize("way", ["there", "back"])
@pytest.mark.parametrize("connection", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_link_of_two_connections_survives_the_end_of_one(
    connection: int, way: str, at: int, stores: list[ProxiedStore]
) -> None:
    results = through(cut(at, connection, way), stores, options(connections=2))
    assert [error for error, _ in results] == [None, None]
    assert [counters["rails_lost"] for _, counters in results] == [1, 1]
    assert sum(counters["frames_resent"] for _, counters in results) > 0


@pytest.mark.parametrize("way", ["there", "back"])
def test_a_link_of_two_connections_survives_corruption_on_one(
    way: str, stores: list[ProxiedStore]
) -> None:
    results = through(flip(FAR, 1, way), stores, options(connections=2))
    assert [error for error, _ in results] == [None, None]
    assert [counters["rails_lost"] for _, counters in results] == [1, 1]


def test_frames_that_arrive_twice_are_used_once(stores: list[ProxiedStore]) -> None:
    """Cut a connection once its first frames have been used, and hold back acknowledgements until
    more bytes have passed than the message has. The answers of the connection that replaces the
    cut one are held back too: they would acknowledge the frames that were used."""
    count = 1_500_000
    passed: Counter[int] = Counter()
    receiver_of: list[Group] = []
    before: list[int] = []
    lock = threading.Lock()
    flows, cut_off, came_again = threading.Event(), threading.Event(), threading.Event()

    def tamper(number: int, direction: str, offset: int, data: bytes) -> bytes | None:
        if direction == "back":
            if flows.is_set():
                came_again.wait(60)
            return data
        if offset + len(data) > 20_000:  # less than a frame: no frame of data is acknowledged yet
            flows.set()
            if number != 0:
                cut_off.wait(60)
        if number == 0 and offset + len(data) > 200_000:
            used = before[0] + 140_000  # two frames of 64 KiB, all from this connection
            until(lambda: receiver_of[0].counters()["tcp_bytes_received"] >= used, "not used")
            cut_off.set()
            return None
        with lock:
            passed[number] += len(data)
            if passed.total() > count + 100_000:
                came_again.set()
        return data

    everyone_knows = threading.Barrier(2)

    def body(group: Group) -> dict[str, int]:
        data = np.arange(count, dtype=np.uint8)
        if group.rank == 1:
            receiver_of.append(group)
            before.append(group.counters()["tcp_bytes_received"] + 20_000)
        stores[-1].arm(group)
        if group.rank == 0:
            group.send(data.ctypes.data, count, DType.UINT8, 1, 0, blocking=True)
        else:
            received = np.zeros(count, np.uint8)
            group.recv(received.ctypes.data, count, DType.UINT8, 0, 0, blocking=True)
            assert received.tobytes() == data.tobytes()
            # The cut connection comes back, so the second copies may arrive after the last data.
            until(lambda: group.counters()["duplicates_dropped"] > 0, "no frame came twice")
        everyone_knows.wait(90)
        counters = dict(group.counters())
        everyone_knows.wait(60)
        return counters

    stores.append(ProxiedStore(tamper))
    how = options(connections=2, eager_bytes=4 << 20)
    sender, receiver = run_ranks(2, body, options=how, store=stores[-1].of)
    assert sender["frames_resent"] > 0
    assert receiver["duplicates_dropped"] > 0
