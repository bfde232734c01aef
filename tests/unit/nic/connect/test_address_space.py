"""Tests of limited address spaces: the sizes of arenas, and ranks under drawn limits."""

import contextlib
import errno
import random
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from slackline.nic import NicOptions
from slackline.nic.connect._address_space import (
    SMALLEST_ARENA,
    Mapper,
    as_large_as_possible,
    left_address_space,
    new_arena,
)

MIB, GIB = 1 << 20, 1 << 30
WANTED = 64 * GIB


def mapper(address_space: int = 0, arena_bytes: int = WANTED, *, old: bool = False) -> Mapper:
    return Mapper(address_space=address_space, arena_bytes=arena_bytes, has_arena=old)


@pytest.mark.parametrize(
    ("mappers", "expected"),
    [
        ([mapper(), mapper()], [WANTED] * 2),
        ([mapper(arena_bytes=GIB), mapper()], [GIB, WANTED]),
        # One rank's limit counts for all, because it maps the arenas of all.
        ([mapper(8 * GIB), mapper()], [1984 * MIB] * 2),
        ([mapper(8 * GIB), mapper(4 * GIB), mapper()], [640 * MIB] * 3),
        # A large arena that exists already cannot be made smaller, and will not be mapped.
        ([mapper(8 * GIB), mapper(old=True)], [3968 * MIB, None]),
        ([mapper(8 * GIB), mapper(8 * GIB), mapper(old=True)], [1984 * MIB] * 2 + [None]),
        # A process that comes later gets what the arenas of the others leave.
        ([mapper(8 * GIB), mapper(8 * GIB, GIB, old=True)], [2944 * MIB, None]),
        ([mapper(), mapper(8 * GIB, GIB, old=True)], [2944 * MIB, None]),
        # The engine's threads need their part of a small space.
        ([mapper(250 * MIB), mapper()], [SMALLEST_ARENA] * 2),
        # There is no room for even the smallest arenas: the others do not follow.
        ([mapper(30 * MIB), mapper(), mapper()], [SMALLEST_ARENA, WANTED, WANTED]),
        ([mapper(1, 4 * MIB)], [4 * MIB]),
    ],
)
def test_all_new_arenas_of_a_host_fit_into_every_address_space(
    mappers: list[Mapper], expected: list[int | None]
) -> None:
    for each, size in zip(mappers, expected, strict=True):
        assert size is None or new_arena(each, mappers) == size


def test_drawn_hosts_never_map_more_than_the_half_that_arenas_may_have() -> None:
    draw = random.Random(5)
    for _ in range(2000):
        mappers = [
            mapper(
                draw.choice((0, draw.randrange(1, 64 * GIB))),
                draw.choice((WANTED, draw.randrange(SMALLEST_ARENA, 8 * GIB))),
                old=draw.random() < 0.3,
            )
            for _ in range(draw.randint(1, 12))
        ]
        sizes = [
            each.arena_bytes if each.has_arena else new_arena(each, mappers) for each in mappers
        ]
        new = sum(not each.has_arena for each in mappers)
        old = sum(size for size, each in zip(sizes, mappers, strict=True) if each.has_arena)
        for each in mappers:
            room = (each.address_space - 256 * MIB) // 2 - old
            if new and room >= new * (SMALLEST_ARENA + 2 * MIB):
                assert sum(sizes) <= each.address_space // 2


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EFBIG])
def test_an_arena_is_halved_until_the_process_may_have_it(number: int) -> None:
    tried: list[int] = []

    def make(size: int) -> int:
        tried.append(size)
        if size > 100 * MIB:
            raise OSError(number, "too large")
        return size

    assert as_large_as_possible(make, 512 * MIB) == 64 * MIB
    assert tried == [512 * MIB, 256 * MIB, 128 * MIB, 64 * MIB]


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EPERM])
def test_an_arena_that_the_process_may_not_have_at_any_size_is_an_error(number: int) -> None:
    tried: list[int] = []

    def make(size: int) -> int:
        tried.append(size)
        raise OSError(number, "no")

    with pytest.raises(OSError, match="no"):
        as_large_as_possible(make, 20 * MIB)
    assert tried == ([20 * MIB, SMALLEST_ARENA] if number == errno.ENOMEM else [20 * MIB])


def test_a_process_without_a_limit_has_no_number_of_bytes_left() -> None:
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        assert left_address_space() == 0


_RANK = """
import logging, resource, sys
from datetime import timedelta
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from folder_store import FolderStore
from slackline.errors import SlacklineError
from slackline.nic import NicOptions
from slackline.nic._native_nic import NativeNic
from slackline.wire import DType, ReduceOp
logging.basicConfig(level=logging.INFO, format="%(message)s")
rank, left = int(sys.argv[1]), int(sys.argv[4])
if left:
    with open("/proc/self/statm") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + left,) * 2)
limit = timedelta(seconds=15)
nic = NativeNic(NicOptions())
try:
    group = nic.open_group(FolderStore(Path(sys.argv[2]), limit), rank, 2, timeout=limit)
    count = 1 << 18
    at = group.allocate(4 * count)
    import ctypes
    values = (ctypes.c_float * count).from_address(at)
    values[0] = values[count - 1] = 1 + rank
    group.all_reduce(at, at, count, DType.FLOAT32, ReduceOp.SUM).wait()
    print("sum", values[0], values[count - 1], flush=True)
except (SlacklineError, MemoryError) as error:
    print("error", type(error).__name__, error, flush=True)
nic.close()
"""
_STORES = Path(__file__).parents[3] / "multiproc"
_LIMIT_S = 60.0
"""Four times the timeout of the ranks' group."""
_SUM = "sum 3.0 3.0"
_CAUSES = ("RLIMIT_AS", "ulimit -v", "emory", "bad_alloc", "no room", "RLIMIT_NPROC")


def run_with(limits: Sequence[int], folder: Path) -> list[tuple[str, str]]:
    """Return output and log of each rank; `limits` are the bytes that ranks may map, 0 for all."""
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank, left in enumerate(limits):
            arguments = [str(rank), str(folder), str(_STORES), str(left)]
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", _RANK, *arguments],
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )
            stack.callback(process.kill)
            ranks.append(process)
        deadline_s = time.monotonic() + _LIMIT_S
        return [
            process.communicate(timeout=max(1.0, deadline_s - time.monotonic()))
            for process in ranks
        ]


def check(limits: Sequence[int], folder: Path) -> list[str]:
    """Check that every rank has the sum or names the cause; return the ranks' outputs."""
    found = run_with(limits, folder)
    for out, log in found:
        assert "unauthenticated" not in log, log
        named = any(cause in out + log for cause in _CAUSES)
        assert out.strip() == _SUM or named, (limits, found)
        if out.startswith("error"):
            assert "Timed out" not in out, (limits, found)
    outs = [out.strip() for out, _ in found]
    assert outs == [_SUM] * 2 or _SUM not in outs, "one rank has the sum and the other has not"
    return [log for _, log in found]


def test_ranks_with_different_limits_of_address_space_share_memory_through_smaller_arenas(
    tmp_path: Path,
) -> None:
    for rank, log in enumerate(check([2 * GIB, 0], tmp_path)):
        assert "registered memory is limited to" in log
        assert "in place of 64 GiB" in log
        assert f"link to rank {1 - rank}: rail 0 (shared memory)" in log


_LEFT = [1, 4, 16, 40, 64, 100, 160, 250, 400, 700, 1200, 3000]
"""The drawn limits in MiB: from a process that hardly starts to one that hardly notices."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(24))
def test_every_limit_ends_in_the_sum_or_in_a_sentence_that_names_it(
    seed: int, tmp_path: Path
) -> None:
    draw = random.Random(seed)
    left = int(_LEFT[seed % len(_LEFT)] * draw.uniform(0.7, 1.4)) * MIB
    other = draw.choice((0, left, int(left * draw.uniform(0.5, 2))))
    limits = [left, other]
    draw.shuffle(limits)
    logs = check(limits, tmp_path)
    if all(each == 0 or each >= 400 * MIB for each in limits):
        assert all("rail 0 (shared memory)" in log for log in logs)


def test_the_smallest_arena_is_the_least_that_options_accept() -> None:
    assert NicOptions(arena_bytes=SMALLEST_ARENA).arena_bytes == SMALLEST_ARENA
