"""Ways to open torch's groups: stores with other timeouts than the group's, ranks that do not come,
and processes without a further thread or descriptor.

Ranks are threads of this process, each with a factory of groups of its own.
"""

import gc
import os
import random
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

from slackline.backend import Context, SlacklineGroup
from slackline.backend._context import open_native
from slackline.backend._torch import BackendOptions
from slackline.errors import LinkError, TimeoutError, UsageError
from slackline.nic import NativeNic, NicOptions

LIMIT = timedelta(seconds=30)
SMALL = 32 << 20
STORES = ("hash", "file", "tcp", "prefix")
NO_FILE = "Too many open files"
NO_THREAD = "can't start new thread"


def stores(kind: str, ranks: int, timeout: timedelta, folder: Path) -> list[dist.Store]:
    """Return the store of each rank; `timeout` is the stores' own."""
    made: list[dist.Store]
    if kind == "file":
        made = [dist.FileStore(str(folder / "store"), -1) for _ in range(ranks)]
    elif kind == "tcp":
        first = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
        made = [first, *(dist.TCPStore("127.0.0.1", first.port) for _ in range(ranks - 1))]
    else:
        made = [dist.HashStore()] * ranks
    if kind == "prefix":
        made = [dist.PrefixStore("before", each) for each in made]
    for each in made:
        each.set_timeout(timeout)
    return made


@pytest.mark.parametrize(("asked", "found"), [(None, "loopback"), ("all", "all")])
def test_options_that_do_not_say_where_to_listen_take_the_environment_s_value(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, found: str
) -> None:
    monkeypatch.setenv("SLACKLINE_LISTEN", "loopback")
    nic = open_native(NicOptions(arena_bytes=SMALL, listen=asked))
    assert isinstance(nic, NativeNic)
    assert nic.options.listen == found
    nic.close()


def opened(
    context: Context, store: dist.Store, rank: int, size: int, timeout: timedelta
) -> SlacklineGroup:
    options = BackendOptions()
    options.store, options.group_rank, options.group_size = store, rank, size
    options.timeout, options.global_ranks_in_group = timeout, []
    return context(options, NicOptions(arena_bytes=SMALL, rails=("shm",)))


def each_in_a_thread(bodies: Sequence[Callable[[], Any]]) -> list[Any]:
    """Return the result or the error of every body; each runs in a thread of its own."""
    results: list[Any] = [None] * len(bodies)

    def run(place: int) -> None:
        try:
            results[place] = bodies[place]()
        except BaseException as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT.total_seconds())
    assert not any(thread.is_alive() for thread in threads), "an opening hangs"
    return results


def reduced(group: SlacklineGroup) -> float:
    """Return one element of the sum of every rank's 1, and end the group."""
    values = torch.ones(10)
    group.allreduce([values]).wait()
    group.shutdown()
    return values[3].item()


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 9))]
)
def test_ranks_that_do_not_come_are_named_when_the_group_s_own_time_is_up(
    kind: str, seed: int, tmp_path: Path
) -> None:
    draw = random.Random(f"{kind} {seed}")
    size = draw.randint(2, 6)
    come = sorted(draw.sample(range(size), draw.randint(1, size - 1)))
    absent = [rank for rank in range(size) if rank not in come]
    own = draw.choice((timedelta(milliseconds=20), timedelta(seconds=300)))
    limit = timedelta(seconds=0.4)
    each = stores(kind, size, own, tmp_path)
    begin_s = time.monotonic()
    errors = each_in_a_thread(
        [lambda r=rank: opened(Context(open_native), each[r], r, size, limit) for rank in come]
    )
    assert time.monotonic() - begin_s < 10 * limit.total_seconds()
    for rank, error in zip(come, errors, strict=True):
        assert isinstance(error, TimeoutError), error
        assert (error.rank, error.peer) == (rank, absent[0])
        assert "agreement on a key prefix" in str(error)
        named = [
            int(word.strip(","))
            for word in str(error).rpartition("rank")[2].split()
            if word.strip(",").isdigit()
        ]
        assert named == ([0] if rank and 0 in absent else absent)


@pytest.mark.parametrize("kind", STORES)
def test_a_rank_may_come_later_than_the_store_s_own_timeout(kind: str, tmp_path: Path) -> None:
    each = stores(kind, 2, timedelta(milliseconds=20), tmp_path)
    waits = threading.Event()

    def late() -> float:
        assert waits.wait(20)
        return reduced(opened(Context(open_native), each[1], 1, 2, LIMIT))

    def early() -> float:
        threading.Timer(0.2, waits.set).start()
        return reduced(opened(Context(open_native), each[0], 0, 2, LIMIT))

    assert each_in_a_thread([early, late]) == [2.0, 2.0]


def test_a_store_whose_process_has_ended_is_a_link_error() -> None:
    server = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port)
    threading.Timer(0.1, lambda: ends.clear()).start()
    ends = [server]
    del server
    with pytest.raises(LinkError, match="the store of the rendezvous does not answer"):
        opened(Context(open_native), client, 1, 2, LIMIT)


def test_two_ranks_in_one_engine_are_refused_at_once() -> None:
    context, store = Context(open_native), dist.HashStore()
    errors = each_in_a_thread([lambda r=r: opened(context, store, r, 2, LIMIT) for r in (0, 1)])
    for error in errors:
        assert isinstance(error, UsageError), error
        assert "ranks 0 and 1 of one group are in one process and share its engine" in str(error)


def slackline_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if "slackline" in thread.name}


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@contextmanager
def no_thread_from_the(n: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Let every start of a thread of slackline's fail from the n-th on; yield the failures."""
    # Python 3.13 has another function, with further arguments.
    name = "_start_new_thread" if sys.version_info < (3, 13) else "_start_joinable_thread"
    start: Any = getattr(threading, name)
    counted, failures = [0], list[int]()

    def limited(function: Any, *arguments: Any, **options: Any) -> Any:
        if "slackline" in function.__self__.name:
            counted[0] += 1
            if counted[0] > n:
                failures.append(counted[0])
                raise RuntimeError(NO_THREAD)
        return start(function, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(threading, name, limited)
        yield failures


@contextmanager
def descriptors_left(n: int) -> Iterator[None]:
    """Leave exactly `n` descriptors to the process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open(os.devnull, os.O_RDONLY)]
    top = max(map(int, open_descriptors())) + 1
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (top + n, hard))
        try:
            while True:
                held.append(os.dup(held[0]))
        except OSError:
            for _ in range(n):
                os.close(held.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in held:
            os.close(fd)


def open_both() -> list[Any]:
    """Open a group of two ranks and use it; return each rank's sum, or its error as text.

    An error itself would keep its engine alive, by the frames of its traceback.
    """
    store = dist.HashStore()
    results = each_in_a_thread(
        [lambda r=r: reduced(opened(Context(open_native), store, r, 2, LIMIT)) for r in (0, 1)]
    )
    texts = [f"{type(r).__name__}: {r}" if isinstance(r, BaseException) else r for r in results]
    results.clear()
    gc.collect()
    return texts


def check_failures(results: list[Any], cause: str) -> None:
    """Check that every rank knows the cause, and that a rank without it raised it as its own."""
    texts = [str(result) for result in results]
    assert [text for text in texts if not text.startswith(("UsageError", "PeerError"))] == []
    assert [text for text in texts if cause not in text] == []
    assert any(text.startswith("UsageError") for text in texts)


@pytest.mark.parametrize(
    "n", [0, 2, 5, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3, 4, 6, 7))]
)
def test_an_opening_without_its_nth_thread_fails_with_that_cause_and_leaves_nothing(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_both()  # Imports and static objects of the first opening are not what is counted.
    threads, descriptors = slackline_threads(), open_descriptors()
    with no_thread_from_the(n, monkeypatch) as failures:
        results = open_both()
    if failures:
        check_failures(results, NO_THREAD)
    else:
        assert results == [2.0, 2.0]
    assert slackline_threads() == threads
    assert open_descriptors() == descriptors
    assert open_both() == [2.0, 2.0]


@pytest.mark.parametrize(
    "tried", [(7, 30, 60), pytest.param((0, 14, *range(20, 60)), marks=pytest.mark.slow)]
)
def test_an_opening_without_its_nth_descriptor_fails_with_that_cause_and_leaves_nothing(
    tried: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Below 20, both ranks together already lack what one of them needs before it begins."""
    open_both()
    threads, descriptors = slackline_threads(), open_descriptors()
    for n in tried:
        with descriptors_left(n):
            results = open_both()
        caplog.clear()  # A record of the log keeps an error, which keeps its engine.
        gc.collect()
        assert slackline_threads() == threads, n
        assert open_descriptors() == descriptors, n
        if results == [2.0, 2.0]:
            break
        check_failures(results, NO_FILE)
    assert results == [2.0, 2.0]
    assert n > 20


def test_options_of_another_backend_are_refused():
    with pytest.raises(UsageError, match=r"are slackline\.nic\.NicOptions, not .*Gloo"):
        Context(open_native)(None, dist.ProcessGroupGloo._Options())
