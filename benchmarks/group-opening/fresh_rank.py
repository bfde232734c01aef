"""A rank of a new job, which imports torch, waits for the other ranks and opens a group.

The conductor starts this program with the rank, the number of ranks, the port of the store and the
backend. The rank writes a line once torch is imported, and begins at the answer. It writes its
times as JSON, and ends when the conductor closes its standard input.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

ELEMENTS = 1 << 10
"""The elements of float32 in the all_reduce: 4 KiB."""


def main() -> None:
    rank, size, port = map(int, sys.argv[1:4])
    backend = sys.argv[4]
    timeout = timedelta(seconds=100)
    buffer = torch.full((ELEMENTS,), float(rank))
    print("ready", flush=True)
    if not sys.stdin.readline():
        return  # The conductor has ended.
    begun, used = time.monotonic(), time.process_time()
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    opened = time.monotonic()
    dist.all_reduce(buffer)
    reduced, used = time.monotonic(), time.process_time() - used
    if not bool((buffer == size * (size - 1) / 2).all()):
        raise ArithmeticError(f"{backend} left a wrong sum")
    print(
        json.dumps({"begun": begun, "opened": opened, "reduced": reduced, "processor_s": used}),
        flush=True,
    )
    sys.stdin.read()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
