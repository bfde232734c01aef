"""A rank on a host of a lab that reduces long tensors: `shares_lab_rank.py RANK SIZE FOLDER`.

Each line of its input gives a number of all_reduces. The rank checks their results and answers with
the shares that the ranks have agreed on.
"""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
from matrix_lab_rank import FolderStore

from slackline.nic import NativeNic, NicOptions
from slackline.nic._native_nic import NativeGroup
from slackline.wire import DType, ReduceOp

COUNT = (5 << 18) // 4
TIMEOUT = timedelta(seconds=20)


def reduce(group: NativeGroup) -> None:
    """All_reduce integers of float32, whose sum is exact in any order."""
    data = np.arange(COUNT, dtype=np.float32) % 1000 + group.rank
    at = data.ctypes.data
    group.all_reduce(at, at, COUNT, DType.FLOAT32, ReduceOp.SUM, blocking=True)
    ranks = group.size
    wanted = (np.arange(COUNT, dtype=np.float32) % 1000) * ranks + ranks * (ranks - 1) // 2
    assert np.array_equal(data, wanted)


def main(rank: int, size: int, folder: str) -> None:
    nic = NativeNic(NicOptions(rails=("tcp",), arena_bytes=64 << 20))
    group = nic.open_group(FolderStore(Path(folder), TIMEOUT), rank, size, timeout=TIMEOUT)
    answers = os.fdopen(os.dup(1), "w")
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        for _ in range(int(line)):
            reduce(group)
        weights, reason = group.shares()
        print(json.dumps({"weights": weights, "reason": reason}), file=answers, flush=True)
    group.close()
    nic.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
