"""The delays that a closed gate causes: of the copy behind it, other streams, launches, threads."""

from __future__ import annotations

import ctypes
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from rank import Rank

__all__ = ["run"]

_STREAMS = 32
_HELD_US = 60_000
_LATE_S = 0.03
"""The time after which a stream counts as held up: half of what a gate is held for."""
_LAUNCHES = 6000
_BLOCKED_S = 0.05
_FULL_US = 1_500_000


def run(rank: Rank) -> None:
    _latency(rank)
    if rank.cpu:
        for figure in ("streams held up", "launches until one blocks"):
            rank.skip(figure, "no device")
        return
    with _held_elsewhere() as hold:
        _streams_held_up(rank, hold)
        _full_queue(rank, hold)


def _latency(rank: Rank) -> None:
    """Measure the time from the opening of a gate to the end of the copy behind it."""
    device = rank.accelerator()
    host = device.allocate(1024).view(torch.float32)
    there = torch.zeros(host.shape, device=rank.device)
    opened, followed, wrong = list[float](), list[float](), 0
    for turn in range(5 if rank.cpu else 50):
        gate = device.gate()
        copy = partial(there.copy_, host, non_blocking=True)
        end = device.copies().to_device(copy, [there], gate=gate)
        begun = time.perf_counter_ns()
        device.follow(end)
        followed.append((time.perf_counter_ns() - begun) / 1e3)
        host.fill_(turn)
        time.sleep(0.002)  # Else the time of the stream on its way to the gate would count.
        wrong += end.done()
        begun = time.perf_counter_ns()
        gate.open()
        end.synchronize()
        opened.append((time.perf_counter_ns() - begun) / 1e3)
        rank.synchronize()
        wrong += not bool((there == turn).all())
    rank.note("gate to the end of a copy", median_us=_us(opened), worst_us=round(max(opened), 1))
    rank.note("the host in a wait for a closed gate", median_us=_us(followed))
    rank.note("wrong results", count=wrong, which="copies behind a gate" if wrong else "")


def _us(values: list[float]) -> float:
    return round(statistics.median(values), 1)


Hold = Callable[[torch.cuda.Stream, int], None]
"""A function that closes a gate in a stream, to be opened after so many microseconds."""


@contextmanager
def _held_elsewhere() -> Iterator[Hold]:
    """Yield a function whose gates another process opens, so that no GIL can keep them closed."""
    from slackline.backend.staging._stream_memory import GateMemory

    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        os.truncate(file.fileno(), mmap.PAGESIZE)
        shared = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        words = torch.frombuffer(shared, dtype=torch.uint8)
        runtime = torch.cuda.cudart()
        torch.cuda.check_error(runtime.cudaHostRegister(words.data_ptr(), words.nbytes, 0))
        memory = GateMemory(lambda nbytes: words[:nbytes])
        command = [sys.executable, str(Path(__file__).with_name("opener.py")), file.name]
        with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as opener:
            orders = opener.stdin
            assert orders is not None

            def hold(stream: torch.cuda.Stream, microseconds: int) -> None:
                gate = memory.gate()
                with torch.cuda.stream(stream):
                    gate.hold(stream.cuda_stream)
                offset = ctypes.addressof(gate.word) - words.data_ptr()
                orders.write(f"{offset} {gate.value} {microseconds}\n")
                orders.flush()

            yield hold
            torch.cuda.synchronize()
            orders.close()
        torch.cuda.check_error(runtime.cudaHostUnregister(words.data_ptr()))


def _streams_held_up(rank: Rank, hold: Hold) -> None:
    """Count the streams that stand still while one other stream waits at a gate."""
    x = torch.zeros(1, device=rank.device)
    holder, held = torch.cuda.Stream(), list[str]()
    names = [*map(str, range(_STREAMS)), "default"]
    for name in names:
        stream = torch.cuda.default_stream() if name == "default" else torch.cuda.Stream()
        if stream == holder:
            continue
        hold(holder, _HELD_US)
        with torch.cuda.stream(stream):
            begun = time.perf_counter()
            x.add_(1)
            stream.record_event().synchronize()
        if time.perf_counter() - begun > _LATE_S:
            held.append(name)
        torch.cuda.synchronize()
    connections = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "not set")
    rank.note(
        "streams held up",
        count=len(held),
        of=len(names),
        which=" ".join(held),
        connections=connections,
    )


def _full_queue(rank: Rank, hold: Hold) -> None:
    """Count the launches behind a gate until one blocks; time other calls of another thread."""
    x, y = (torch.zeros(1, device=rank.device) for _ in range(2))
    other, seen = torch.cuda.Stream(), dict[str, float]()
    event = other.record_event()
    torch.cuda.synchronize()
    hold(torch.cuda.current_stream(), _FULL_US)
    full = threading.Event()
    calls: dict[str, Callable[[], object]] = {
        "query_ms": event.query,
        "launch_ms": partial(y.add_, 1),
        "pinned_ms": partial(torch.empty, 1 << 22, pin_memory=True),
        "memory_ms": partial(torch.empty, 1 << 28, device=rank.device),
        "capturing_ms": torch.cuda.is_current_stream_capturing,
    }

    def meanwhile() -> None:
        full.wait(0.5)  # The first blocked launch cannot say so.
        for name, call in calls.items():
            begun = time.perf_counter()
            with torch.cuda.stream(other):
                call()
            seen[name] = round((time.perf_counter() - begun) * 1e3, 2)

    thread = threading.Thread(target=meanwhile)
    thread.start()
    first = 0
    for count in range(1, _LAUNCHES + 1):
        begun = time.perf_counter()
        x.add_(1)
        if not first and time.perf_counter() - begun > _BLOCKED_S:
            first = count
    full.set()
    thread.join()
    torch.cuda.synchronize()
    rank.note("launches until one blocks", count=first, of=_LAUNCHES, **seen)
