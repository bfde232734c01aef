"""Tests of the times for which a thread runs on a core and waits for one, as Linux counts them."""

import os
import threading
import time
from pathlib import Path

import pytest

from slackline.records import CoreTimes, open_core_times

SCHEDSTAT = Path("/proc/thread-self/schedstat")
without = pytest.mark.skipif(not SCHEDSTAT.exists(), reason="the kernel does not state these times")


def test_the_first_two_numbers_of_the_file_are_read_anew_each_time(tmp_path: Path) -> None:
    path = tmp_path / "schedstat"
    path.write_text("5000000 1234 17\n")
    read = open_core_times(path)
    assert read is not None
    before = read()
    assert before == CoreTimes(run_ns=5_000_000, delay_ns=1234)
    path.write_text("6000000 2345 18\n")
    assert read().since(before) == CoreTimes(run_ns=1_000_000, delay_ns=1111)


@pytest.mark.parametrize("text", ["", "17\n", "one two three\n"])
def test_a_kernel_without_the_numbers_gives_no_reader(tmp_path: Path, text: str) -> None:
    path = tmp_path / "schedstat"
    assert open_core_times(path) is None
    path.write_text(text)
    assert open_core_times(path) is None


def test_the_file_is_closed_with_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "schedstat"
    path.write_text("1 2 3\n")
    before = len(os.listdir("/proc/self/fd"))
    read = open_core_times(path)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del read
    assert len(os.listdir("/proc/self/fd")) == before


@without
def test_the_time_on_a_core_grows_with_work() -> None:
    read = open_core_times()
    assert read is not None
    before, began_ns = read(), time.thread_time_ns()
    while time.thread_time_ns() - began_ns < 10_000_000:
        pass
    assert read().since(before).run_ns >= 9_000_000


@without
def test_the_times_of_a_thread_that_has_ended_grow_no_more() -> None:
    made = []
    thread = threading.Thread(target=lambda: made.append(open_core_times()))
    thread.start()
    thread.join()
    (read,) = made
    assert read is not None
    before = read()
    # The kernel removes the entry of the thread a moment after the join.
    while Path(f"/proc/self/task/{thread.native_id}").exists():
        os.sched_yield()
    with pytest.raises(ProcessLookupError):
        os.pread(read._file, 64, 0)  # type: ignore[attr-defined]
    ended = read()
    assert ended.delay_ns >= before.delay_ns
    assert read() == ended
