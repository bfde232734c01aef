"""A rank on a host of a Wiring: `network_rank.py RANK SIZE FOLDER [RAILS]`.

For each line of its input the rank reduces tensors with the other ranks, checks the sums, and
answers with its rails and the bytes that each NIC has sent.
"""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from folder_store import FolderStore

from slackline.env import Environment
from slackline.errors import SlacklineError
from slackline.nic import Group, NativeNic, NicOptions
from slackline.wire import DType, ReduceOp

TIMEOUT = timedelta(seconds=20)
COUNT = 1 << 18


def add_up(group: Group, number: int) -> None:
    """Reduce 1 MiB and check every element: rank r contributes (i + number) * (r + 1)."""
    base = np.arange(COUNT, dtype=np.int32) + number
    data = base * np.int32(group.rank + 1)
    at = data.ctypes.data
    group.all_reduce(at, at, COUNT, DType.INT32, ReduceOp.SUM, blocking=True)
    if data.tobytes() != (base * np.int32(group.size * (group.size + 1) // 2)).tobytes():
        raise AssertionError(f"rank {group.rank}: the sum of round {number} is wrong")


def sent_bytes() -> dict[str, int]:
    """Return the bytes that each NIC of this host has sent, from /proc/net/dev."""
    rows = Path("/proc/net/dev").read_text().splitlines()[2:]
    return {name.strip(): int(row.split()[8]) for name, _, row in (r.partition(":") for r in rows)}


def main(rank: int, size: int, folder: str, rails: str = "") -> None:
    """Open the group and work until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    environment = {"SLACKLINE_RAILS": rails} if rails else {}
    nic = NativeNic(NicOptions.from_env(Environment.read(environment)))
    try:
        group = nic.open_group(FolderStore(Path(folder), TIMEOUT), rank, size, timeout=TIMEOUT)
        print("{}", file=answers, flush=True)
        for number, _ in enumerate(sys.stdin):
            add_up(group, number)
            rails = sorted(group._engine.rails(), key=lambda rail: (rail.link, rail.rail))
            told = {"rails": [rail.name for rail in rails], "sent": sent_bytes()}
            print(json.dumps(told), file=answers, flush=True)
        group.close()
    except SlacklineError as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers, flush=True)
        raise
    finally:
        nic.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
