"""The program that both ranks of `slackline doctor --save` run.

    _costs.py RESULT

The two ranks exchange messages over the rails that SLACKLINE_RAILS names. Then rank 0 writes the
samples of each cost to the file RESULT, as JSON: the keys are those of the calibration, without the
kind of rail.
"""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from slackline.wire import DType

if TYPE_CHECKING:
    from slackline.nic import Group

__all__ = ["main"]

_PINGS = 1000
_PAUSES = 100
_LONG = 60
_LONG_BYTES = 1 << 20
_COMPUTATIONS = 100
_REPEATED = 16
"""The computations whose mean is one sample, so that samples vary only by slow disturbances."""

_PAUSE_S = 0.002
"""A time after which a rank that waits for a message sleeps."""
_TAG = 1 << 20


def main(result: Path) -> None:
    """Measure with both ranks; at rank 0, write the samples to the file `result` as JSON."""
    import torch
    from torch import distributed as dist

    from slackline.backend import group_of

    torch.set_num_threads(1)
    dist.init_process_group("slackline")
    try:
        group = group_of(dist.group.WORLD)
        memory = group.allocate(_LONG_BYTES)
        try:
            if group.rank == 0:
                samples = _lead(group, memory) | _compute()
                result.write_text(json.dumps(samples))
            else:
                _follow(group, memory)
        finally:
            group.free(memory)
    finally:
        dist.destroy_process_group()


def _lead(group: "Group", memory: int) -> dict[str, list[float]]:
    """Exchange messages with the other rank, as the leader; return samples of the message costs."""
    trips = [_trip(group, memory, 8) for _ in range(_PINGS)]
    usual = sorted(trips)[len(trips) // 2]
    woken = []
    for _ in range(_PAUSES):
        time.sleep(_PAUSE_S)
        woken.append(_trip(group, memory, 8) - usual)
    long = [_trip(group, memory, _LONG_BYTES) - usual for _ in range(_LONG)]
    return {
        "message_ns": [trip / 2 for trip in trips],
        "wakeup_ns": [float(late) for late in woken],
        "byte_ps": [1000 * late / _LONG_BYTES for late in long],
    }


def _follow(group: "Group", memory: int) -> None:
    from slackline.nic import Operation  # `slackline --help` does not load the engine

    for nbytes in [8] * (_PINGS + _PAUSES) + [_LONG_BYTES] * _LONG:
        group.post(Operation.recv(memory, nbytes, DType.UINT8, 0, _TAG), blocking=True)
        group.post(Operation.send(memory, 8, DType.UINT8, 0, _TAG), blocking=True)


def _trip(group: "Group", memory: int, nbytes: int) -> int:
    """Return the nanoseconds of a round trip: `nbytes` bytes to rank 1, and 8 bytes back."""
    from slackline.nic import Operation

    begin = time.perf_counter_ns()
    group.post(Operation.send(memory, nbytes, DType.UINT8, 1, _TAG), blocking=True)
    group.post(Operation.recv(memory, 8, DType.UINT8, 1, _TAG), blocking=True)
    return time.perf_counter_ns() - begin


def _compute() -> dict[str, list[float]]:
    """Return samples of the times of a matrix product and of an addition."""
    import torch

    matrix = torch.ones(256, 256, dtype=torch.float32, device="cpu")
    one, other = (torch.ones(_LONG_BYTES // 4, dtype=torch.float32, device="cpu") for _ in range(2))
    out = torch.empty(256, 256, dtype=torch.float32, device="cpu")
    for _ in range(10):
        torch.mm(matrix, matrix, out=out)
        one.add_(other)
    products, sums = [], []
    for _ in range(_COMPUTATIONS):
        begin = time.perf_counter_ns()
        for _ in range(_REPEATED):
            torch.mm(matrix, matrix, out=out)
        middle = time.perf_counter_ns()
        for _ in range(_REPEATED):
            one.add_(other)
        end = time.perf_counter_ns()
        products.append((middle - begin) / _REPEATED)
        sums.append(1000 * (end - middle) / (_REPEATED * 2 * _LONG_BYTES))
    return {"compute_ns": products, "reduce_byte_ps": sums}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
