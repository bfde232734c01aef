"""The attacked ranks of the tests with hostile peers: processes that add while others attack them.

Both ranks of a healthy group add known numbers again and again and compare every sum. On rank 1 a
second thread opens, on the same engine, the groups in which the test plays a hostile rank 0.
"""

import itertools
import json
import sys
import threading
from datetime import timedelta
from typing import Any

import numpy as np
from fault_ranks import Line

from slackline.errors import SlacklineError
from slackline.nic import Group, NativeNic, NicOptions, Store
from slackline.nic.aggregator import Aggregator, AggregatorOptions
from slackline.wire import DType, ReduceOp

HEALTHY = timedelta(seconds=60)
ATTACKED = timedelta(milliseconds=500)
LENGTH = 20_000
PAUSE_S = 0.005
FURTHER_ROUNDS = 2


class Prefixed:
    """A store that keeps its keys, with a prefix, in another store."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._prefix = store, prefix

    def set(self, key: str, value: str, /) -> None:
        self._store.set(self._prefix + key, value)

    def get(self, key: str, /) -> bytes:
        return self._store.get(self._prefix + key)

    def check(self, keys: list[str], /) -> bool:
        return self._store.check([self._prefix + key for key in keys])


class Rounds:
    """The number of exact sums of the healthy group so far, for which other threads can wait."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = threading.Condition()

    def next(self) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self.count >= count, HEALTHY.total_seconds()):
                raise AssertionError(f"the healthy group stands at round {self.count}")


def keep_adding(group: Group, rounds: Rounds, stop: threading.Event) -> None:
    """Add known numbers of all ranks and check each sum, until `stop` is set on rank 0."""
    size = group.size
    while True:
        data = np.arange(LENGTH, dtype=np.int32) + 1000 * group.rank + rounds.count
        data[0] = group.rank == 0 and stop.is_set()
        at = data.ctypes.data
        group.all_reduce(at, at, LENGTH, DType.INT32, ReduceOp.SUM, blocking=True)
        expected = size * np.arange(LENGTH) + 500 * size * (size - 1) + size * rounds.count
        assert np.array_equal(data[1:], expected[1:]), f"round {rounds.count} is wrong"
        if data[0]:
            return
        rounds.next()
        stop.wait(PAUSE_S)


def outcome(nic: NativeNic, store: Store) -> str:
    """Open a group with the hostile rank and add; return the name of the error, or "sum"."""
    try:
        group = nic.open_group(store, 1, 2, timeout=ATTACKED)
    except SlacklineError as error:
        return type(error).__name__
    try:
        data = np.ones(300_000, np.float32)
        at = data.ctypes.data
        group.all_reduce(at, at, data.size, DType.FLOAT32, ReduceOp.SUM, blocking=True)
    except SlacklineError as error:
        return type(error).__name__
    finally:
        group.close(timedelta(0))
    return "sum"


def stand(nic: NativeNic, line: Line, rounds: Rounds) -> None:
    """Open a group for each attack that the test requests, until the test sends null."""
    for number in itertools.count():
        order = json.loads(line.get(f"attack/{number}"))
        if order is None:
            return
        found = None
        try:
            if order == "group":
                found = outcome(nic, Prefixed(line, f"{number}/"))
            rounds.wait_for(rounds.count + FURTHER_ROUNDS)
        except BaseException as error:
            line.tell(f"outcome/{number}", f"{type(error).__name__}: {error}")
            raise
        line.tell(f"outcome/{number}", found)


def add(rank: int, size: int, port: int, options: dict[str, Any]) -> None:
    """Run a rank of the healthy group; if it is rank 1, its engine is attacked meanwhile."""
    line, side = Line(rank, port), Line(rank, port)
    options["rails"] = tuple(options["rails"])
    nic = NativeNic(NicOptions(arena_bytes=64 << 20, **options))
    group = nic.open_group(Prefixed(line, "healthy/"), rank, size, timeout=HEALTHY)
    rounds, stop = Rounds(), threading.Event()

    def follow() -> None:
        if rank == 1:
            stand(nic, side, rounds)
        else:
            side.get("stop")
            stop.set()

    thread = threading.Thread(target=follow)
    thread.start()
    keep_adding(group, rounds, stop)
    thread.join()
    line.tell("rounds", rounds.count)
    line.tell("plan", group.plan_for(4 * LENGTH).name)
    group.close()
    nic.close()


def aggregate(rank: int, size: int, port: int, options: dict[str, Any]) -> None:
    """Run an aggregator until the test ends it."""
    line = Line(rank, port)
    node = Aggregator(AggregatorOptions(host="127.0.0.1", port=0, workers=4, **options))
    node.start()
    line.tell("address", node.address)
    line.get("end")
    node.close()


if __name__ == "__main__":
    rank, size, port = (int(word) for word in sys.argv[2:5])
    {"add": add, "aggregate": aggregate}[sys.argv[1]](rank, size, port, **json.loads(sys.argv[5]))
