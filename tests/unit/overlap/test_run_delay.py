"""Tests of the training thread's waits for a core, as Linux counts them."""

import os
import threading
from pathlib import Path

import pytest

from slackline.overlap._recorder import Recorder
from slackline.overlap._run_delay import open_run_delay

SCHEDSTAT = Path("/proc/thread-self/schedstat")


def test_the_second_number_of_the_file_is_read_anew_each_time(tmp_path):
    path = tmp_path / "schedstat"
    path.write_text("5000000 1234 17\n")
    delay = open_run_delay(path)
    assert delay() == 1234
    path.write_text("6000000 2345 18\n")
    assert delay() == 2345


@pytest.mark.parametrize("text", ["", "17\n", "one two three\n"])
def test_a_kernel_without_the_number_gives_no_reader(tmp_path, text):
    path = tmp_path / "schedstat"
    assert open_run_delay(path) is None
    path.write_text(text)
    assert open_run_delay(path) is None


def test_the_file_is_closed_with_the_reader(tmp_path):
    path = tmp_path / "schedstat"
    path.write_text("1 2 3\n")
    before = len(os.listdir("/proc/self/fd"))
    delay = open_run_delay(path)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del delay
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(not SCHEDSTAT.exists(), reason="the kernel does not state waits for a core")
def test_the_time_of_a_thread_that_has_ended_grows_no_more():
    made = []
    thread = threading.Thread(target=lambda: made.append(open_run_delay()))
    thread.start()
    thread.join()
    before_ns = made[0]()
    # The kernel removes the entry of the thread a moment after the join.
    while Path(f"/proc/self/task/{thread.native_id}").exists():
        os.sched_yield()
    with pytest.raises(ProcessLookupError):
        os.pread(made[0]._file, 64, 0)
    ended_ns = made[0]()
    assert ended_ns >= before_ns
    assert made[0]() == ended_ns


def test_a_step_has_the_growth_of_the_waits_since_the_previous_call_of_step():
    told, waited = [], iter([100, 130, 130, 190])
    recorder = Recorder(0, 0, told.append, run_delay=lambda: next(waited), clock=lambda: 0)
    for _ in range(3):
        recorder.stepped()
        recorder.settled()
    assert [step.run_delay_ns for step in told] == [30, 0, 60]


def test_without_a_reader_the_waits_are_zero():
    told = []
    recorder = Recorder(0, 0, told.append, clock=lambda: 0)
    recorder.stepped()
    recorder.settled()
    assert [step.run_delay_ns for step in told] == [0]
