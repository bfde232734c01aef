"""Tests that a process that ends without closing its nic prints nothing and does not crash."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys, threading
from datetime import timedelta
import numpy as np
from slackline.nic import NativeNic, NicOptions
from slackline.testing import MemoryStore
from slackline.wire import DType, ReduceOp

store, opened = MemoryStore(), {}

def open_rank(rank):
    nic = NativeNic(NicOptions(arena_bytes=64 << 20))
    opened[rank] = nic, nic.open_group(store, rank, 2, timeout=timedelta(seconds=20))

ranks = [threading.Thread(target=open_rank, args=(rank,)) for rank in range(2)]
for rank in ranks:
    rank.start()
for rank in ranks:
    rank.join()
data = np.ones(1000, np.float32)
at = data.ctypes.data
transfer = opened[0][1].all_reduce(at, at, data.size, DType.FLOAT32, ReduceOp.SUM)
transfer.add_done_callback(lambda error: None)  # starts the thread of completions
if sys.argv[1] == "forgotten":
    del opened, transfer
raise SystemExit("the end")
"""


@pytest.mark.parametrize("how", ["held", pytest.param("forgotten", marks=pytest.mark.slow)])
def test_a_process_may_end_with_its_nic_open_and_work_posted(how: str) -> None:
    command = [sys.executable, "-c", SCRIPT, how]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert (ended.returncode, ended.stderr) == (1, "the end\n")
