"""The rank processes of the fault tests. Each function is one scenario of a rank's work and end."""

import json
import os
import signal
import socket
import sys
import time
from datetime import timedelta
from typing import Any

import numpy as np

from slackline.errors import SlacklineError
from slackline.nic import Group, NativeNic, NicOptions, Transfer
from slackline.wire import DType, ReduceOp

TIMEOUT = timedelta(seconds=25)
BIG = 16 << 20


class Line:
    """A rank's connection to the store of the test, which is also a store for the nic."""

    def __init__(self, rank: int, port: int) -> None:
        self._rank = rank
        self._stream = socket.create_connection(("127.0.0.1", port)).makefile("rw")

    def set(self, key: str, value: str, /) -> None:
        self._ask("set", key, value)

    def get(self, key: str, /) -> bytes:
        return str(self._ask("get", key)).encode()

    def check(self, keys: list[str], /) -> bool:
        return bool(self._ask("check", *keys))

    def tell(self, what: str, value: object = None) -> None:
        self.set(f"{self._rank}/{what}", json.dumps(value))

    def _ask(self, *request: str) -> Any:
        self._stream.write(json.dumps(request) + "\n")
        self._stream.flush()
        return json.loads(self._stream.readline())


def all_reduce(group: Group, data: Any, **how: Any) -> Transfer:
    at = data.ctypes.data
    return group.all_reduce(at, at, data.size, DType.FLOAT32, ReduceOp.SUM, **how)


def mourn(line: Line, group: Group, data: Any, transfer: Transfer | None) -> None:
    """Report the operation's error, and the time from the begin of the wait until the error."""
    start = time.monotonic()
    line.tell("waiting")
    try:
        (transfer or all_reduce(group, data, tag=7)).wait()
        line.tell("error", {"type": None})
    except SlacklineError as error:
        told = {
            "type": type(error).__name__,
            "text": str(error),
            "rank": error.rank,
            "peer": error.peer,
            "tag": error.tag,
            "sequence": error.sequence,
            "seconds": time.monotonic() - start,
        }
        line.tell("error", told)
    line.get("leave")  # another rank could take an early end for the fault that is tested


def lose_a_rank(
    line: Line, group: Group, rank: int, size: int, victim: int, when: str, blocking: bool
) -> None:
    """End rank `victim` before it posts, in the middle of its operation, or while others wait."""
    data = np.ones(BIG if when == "middle" else 1000, np.float32)
    if rank != victim:
        mourn(line, group, data, None if blocking else all_reduce(group, data, tag=7))
    elif when == "middle":
        transfer = all_reduce(group, data, tag=7)
        while group.counters()["bytes_reduced"] == 0:
            assert not transfer.done()
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        line.tell("ready")
        line.get("die")


def lose_one_of_many(line: Line, group: Group, rank: int, size: int, victim: int) -> None:
    """Report the failure of an operation that needs all ranks, and the ranks lost at this rank."""
    if rank == victim:
        line.tell("ready")
        line.get("die")
    data = np.ones(1000, np.float32)
    transfer = all_reduce(group, data, tag=7)
    start = time.monotonic()
    line.tell("waiting")
    told: dict[str, Any] = {"type": None}
    try:
        transfer.wait()
    except SlacklineError as error:
        told = {"type": type(error).__name__, "text": str(error), "peer": error.peer}
    while group.lost() != {victim} and time.monotonic() < start + TIMEOUT.total_seconds():
        time.sleep(0.01)
    line.tell("error", {**told, "lost": sorted(group.lost())})
    line.get("leave")


def idle(line: Line, group: Group, rank: int, size: int, seconds: float) -> None:
    """Report the processor time that the process uses while nothing is posted."""
    group.barrier(blocking=True)
    time.sleep(0.1)  # let the effects of the barrier end
    before = time.process_time()
    time.sleep(seconds)
    line.tell("busy", time.process_time() - before)
    line.get("leave")


def hold_memory(line: Line, group: Group, rank: int, size: int) -> None:
    """Use much registered memory and wait until the process is killed."""
    address = group.allocate(64 << 20)
    source = np.ones(16 << 20, np.float32)
    at = source.ctypes.data
    group.all_reduce(at, address, source.size, DType.FLOAT32, ReduceOp.SUM, blocking=True)
    line.tell("ready")
    line.get("never")


def main(function: str, rank: int, size: int, port: int, arguments: dict[str, Any]) -> None:
    line = Line(rank, port)
    rails = tuple(arguments.pop("rails", ("shm",)))
    nic = NativeNic(NicOptions(rails=rails, arena_bytes=1 << 30))
    group = nic.open_group(line, rank, size, timeout=TIMEOUT)
    globals()[function](line, group, rank, size, **arguments)
    group.close()
    nic.close()


if __name__ == "__main__":
    rank, size, port = (int(word) for word in sys.argv[2:5])
    main(sys.argv[1], rank, size, port, json.loads(sys.argv[5]))
