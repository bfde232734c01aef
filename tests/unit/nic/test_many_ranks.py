"""Tests of groups of up to 1000 ranks on real engines in one process: opening, barriers,
reductions.

Every engine has a link to every other engine, but a rail (a socket of a link) is made only when an
operation needs the link: 1000 ranks that use only the first links of a group take less than 12,000
descriptors instead of a million. The rails are made directly and not by handshakes, because all
ranks share one interpreter, which is too slow even for the handshakes of 64 ranks.
"""

import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import slackline._native as _native
from slackline.nic import NicOptions
from slackline.nic.collectives._plans import PlanBook, first_peers
from slackline.plan.collective import Collective
from slackline.wire import DType, ReduceOp

JOB_CODE = 0x5EED
TIMEOUT_NS = 100 * 10**9
COUNT = 50
ROOT = 3
"""The root of the reduce, which combines the data of all ranks."""
DESCRIPTORS = {130: 10_000, 260: 10_000, 512: 19_000, 1000: 12_000}
"""The limits of descriptors for the tests; 1000 ranks use only the first links of a group."""
STACK_BYTES = 256 << 10


@contextmanager
def descriptors(count: int) -> Iterator[None]:
    """Raise the process's limit of open files to `count`; skip if the system forbids it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= count:
        yield
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, max(hard, count)))
    except (ValueError, OSError):
        pytest.skip(f"needs {count} descriptors, and the process may open {hard}")
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Ranks:
    """Engines in one process, and a group of all of them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.books = [
            PlanBook(rank, size, NicOptions(order="any"), all_shared=False, hosts=range(size))
            for rank in range(size)
        ]
        self.engines = [
            _native.Engine(
                arena_bytes=1 << 20,
                wire_segment_bytes=128 << 10,
                memory_segment_bytes=256 << 10,
                eager_bytes=256 << 10,
                spin_microseconds=0,
            )
            for _ in range(size)
        ]
        links = [
            [-1 if other == rank else engine.add_link(f"rank {other}") for other in range(size)]
            for rank, engine in enumerate(self.engines)
        ]
        self._links = links
        self._lock = threading.Lock()
        self.joined: set[tuple[int, int]] = set()
        """The pairs of ranks (low, high) whose link has a rail."""
        before = threading.stack_size(STACK_BYTES)
        self._makers = [threading.Thread(target=self._make, args=(rank,)) for rank in range(size)]
        for maker in self._makers:
            maker.start()
        threading.stack_size(before)
        self.groups = [
            engine.open_group(1, rank, links[rank], False)
            for rank, engine in enumerate(self.engines)
        ]

    def close(self) -> None:
        for engine in self.engines:
            engine.close(0)
        for maker in self._makers:
            maker.join()

    def _make(self, rank: int) -> None:
        """Add a rail to a link whenever the rank's engine asks for one; return after its close."""
        while (event := self.engines[rank].next_event()) is not None:
            if event.what == "wanted":
                self._join(rank, self._links[rank].index(event.link))

    def _join(self, rank: int, peer: int) -> None:
        pair = min(rank, peer), max(rank, peer)
        with self._lock:
            if pair in self.joined:
                return
            self.joined.add(pair)
        ends = socket.socketpair()
        for (here, there), end in zip((pair, pair[::-1]), ends, strict=True):
            self.engines[here].add_rail(self._links[here][there], 0, "tcp", end.detach(), JOB_CODE)

    def post(
        self,
        rank: int,
        collective: Collective,
        program: _native.Program,
        buffer: np.ndarray | None = None,
    ) -> _native.Request | None:
        address, count = (0, 0) if buffer is None else (buffer.ctypes.data, buffer.size)
        nothing = collective is Collective.BARRIER
        dtype = DType.UINT8 if nothing else DType.INT32
        op = ReduceOp.NONE if nothing else ReduceOp.SUM
        return self.groups[rank].run(
            program, address, address, count, dtype, op, count * 4, -1, 0, TIMEOUT_NS, False
        )

    def finish(self, requests: list[_native.Request | None]) -> None:
        for rank, request in enumerate(requests):
            if request is None:
                continue
            assert request.wait(-1), f"rank {rank} is not done"
            failure = request.failure()
            assert failure is None, f"rank {rank}: {failure}"


def wait_for_the_last(ranks: Ranks) -> None:
    """Check that no rank leaves the barrier before the last one has entered."""
    programs = [book.select(Collective.BARRIER, 0, DType.UINT8) for book in ranks.books]
    assert {chosen.name for chosen in programs} == {"dissemination"}
    last = ranks.size // 2
    assert ranks.joined == set()
    early = {
        rank: ranks.post(rank, Collective.BARRIER, chosen.program)
        for rank, chosen in enumerate(programs)
        if rank != last
    }
    assert all(request is not None and not request.done() for request in early.values())
    late = ranks.post(last, Collective.BARRIER, programs[last].program)
    ranks.finish([*early.values(), late])
    distances = [1 << k for k in range((ranks.size - 1).bit_length())]
    assert ranks.joined == {
        (min(rank, (rank + d) % ranks.size), max(rank, (rank + d) % ranks.size))
        for rank in range(ranks.size)
        for d in distances
    }


def reduce_exactly(ranks: Ranks) -> None:
    """Check that every plan gives exact sums of integers, on all ranks or on the root."""
    elements = np.arange(COUNT, dtype=np.int32)
    wanted = elements * ranks.size + sum(range(ranks.size))
    for collective, name, root in (
        (Collective.ALL_REDUCE, "halving-doubling", None),
        (Collective.REDUCE, "direct", ROOT),
    ):
        buffers = [elements + rank for rank in range(ranks.size)]
        programs = [book.program(collective, name, root) for book in ranks.books]
        ranks.finish(
            [
                ranks.post(rank, collective, programs[rank], buffers[rank])
                for rank in range(ranks.size)
            ]
        )
        for rank in range(ranks.size) if root is None else (root,):
            assert (buffers[rank] == wanted).all(), f"{name} on rank {rank}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "size", [130, *(pytest.param(size, marks=pytest.mark.slow) for size in (260, 512))]
)
def test_many_ranks_wait_for_each_other_and_reduce(size: int) -> None:
    with descriptors(DESCRIPTORS[size]):
        ranks = Ranks(size)
        try:
            wait_for_the_last(ranks)
            reduce_exactly(ranks)
        finally:
            ranks.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_thousand_ranks_wait_for_each_other_and_reduce_over_the_first_links() -> None:
    size = 1000
    with descriptors(DESCRIPTORS[size]):
        ranks = Ranks(size)
        try:
            for book in ranks.books:
                book.learn_few([10_000_000, 20_000_000])
            entries = [
                book.select(Collective.BARRIER, 0, DType.UINT8, early=True).program
                for book in ranks.books
            ]
            requests = [
                ranks.post(rank, Collective.BARRIER, entries[rank]) for rank in range(1, size)
            ]
            assert all(request is not None and not request.done() for request in requests)
            ranks.finish([*requests, ranks.post(0, Collective.BARRIER, entries[0])])
            elements = np.arange(COUNT, dtype=np.int32)
            buffers = [elements + rank for rank in range(size)]
            reduces = [
                book.all_reduce(elements.nbytes, DType.INT32, ReduceOp.SUM, early=True).program
                for book in ranks.books
            ]
            ranks.finish(
                [
                    ranks.post(rank, Collective.ALL_REDUCE, reduces[rank], buffers[rank])
                    for rank in range(size)
                ]
            )
            wanted = elements * size + sum(range(size))
            assert all((buffer == wanted).all() for buffer in buffers)
            assert ranks.joined <= {
                (min(rank, peer), max(rank, peer))
                for rank in range(size)
                for peer in first_peers(rank, size)
            }
            assert len(ranks.joined) >= size - 1
        finally:
            ranks.close()
