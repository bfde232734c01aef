"""The rates of copies from and to pinned memory, by the streams and the pieces of the backend."""

from __future__ import annotations

import statistics
import time
from functools import partial

import torch
from rank import Rank

__all__ = ["run"]

_ROUNDS = 5


def run(rank: Rank) -> None:
    size = 1 << 20 if rank.cpu else 1 << 28
    pieces = (1 << 18, size) if rank.cpu else (1 << 20, 4 << 20, 16 << 20, size)
    device = rank.accelerator()
    hosts = [device.allocate(size) for _ in range(2)]
    there = [torch.zeros(size, dtype=torch.uint8, device=rank.device) for _ in range(2)]
    for piece in pieces:
        for way in ("out", "back", "both"):
            times = []
            for _ in range(_ROUNDS):
                rank.synchronize()
                begun = time.perf_counter()
                copies, ends = device.copies(), []
                for at in range(0, size, piece):
                    part = slice(at, at + piece)
                    if way != "back":
                        copy = partial(hosts[0][part].copy_, there[0][part], non_blocking=True)
                        ends.append(copies.to_host(copy, [there[0]]))
                    if way != "out":
                        copy = partial(there[1][part].copy_, hosts[1][part], non_blocking=True)
                        ends.append(copies.to_device(copy, [there[1]]))
                for end in ends:
                    end.synchronize()
                times.append(time.perf_counter() - begun)
            moved = size * (2 if way == "both" else 1)
            rate = moved / statistics.median(times) / 1e9
            rank.note("pinned copies", way=way, piece_kib=piece >> 10, gigabytes_s=round(rate, 2))
    begun = time.perf_counter()
    device.allocate(100 << 20)
    rank.note("100 MiB of new pinned memory", ms=round((time.perf_counter() - begun) * 1e3, 1))
