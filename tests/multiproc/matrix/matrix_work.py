"""The work of the ranks in every cell of the matrix. Each rank compares its results with the
reference bit by bit."""

import numpy as np

from slackline.nic import Group
from slackline.wire import DType, ReduceOp

__all__ = ["work"]

COUNTS = (1, 1000, 60_007, 300_001)


def work(group: Group, rounds: int) -> dict[str, int]:
    """Exchange sums and messages. Return the engine's counters before any rank has left."""
    for turn in range(rounds):
        _sums(group, turn)
        _messages(group, turn)
    group.barrier(blocking=True)
    rails = group._engine.rails()  # type: ignore[attr-defined]
    resent = sum(rail.packets_resent for rail in rails)
    counters = dict(group.counters()) | {"packets_resent": resent}
    group.barrier(blocking=True)
    return counters


def _numbers(rank: int, turn: int, count: int) -> np.ndarray:
    generator = np.random.default_rng([rank, turn, count])
    return generator.standard_normal(count).astype(np.float32)


def _sums(group: Group, turn: int) -> None:
    """Post several sums concurrently, in place and not. The sums are in rank order, so the
    reference adds left to right."""
    posted = []
    for tag, count in enumerate(COUNTS):
        mine = _numbers(group.rank, turn, count)
        target = mine.copy() if tag % 2 else np.empty_like(mine)
        source = target if tag % 2 else mine
        at = source.ctypes.data, target.ctypes.data
        transfer = group.all_reduce(*at, count, DType.FLOAT32, ReduceOp.SUM, tag=tag)
        posted.append((transfer, source, target, count))
    for transfer, _, target, count in posted:
        transfer.wait()
        expected = _numbers(0, turn, count)
        for rank in range(1, group.size):
            expected = expected + _numbers(rank, turn, count)
        assert target.tobytes() == expected.tobytes(), f"turn {turn}, {count} elements"


def _messages(group: Group, turn: int) -> None:
    """Send short and long messages from each rank to each other rank concurrently."""
    posted = []
    for peer in range(group.size):
        if peer == group.rank:
            continue
        for tag, count in enumerate(COUNTS):
            outgoing = _numbers(group.rank, turn + peer, count)
            incoming = np.zeros(count, np.float32)
            get = group.recv(incoming.ctypes.data, count, DType.FLOAT32, peer, tag)
            put = group.send(outgoing.ctypes.data, count, DType.FLOAT32, peer, tag)
            posted.append((get, put, outgoing, incoming, peer, count))
    for get, put, _, incoming, peer, count in posted:
        get.wait()
        put.wait()
        expected = _numbers(peer, turn + group.rank, count)
        assert incoming.tobytes() == expected.tobytes(), f"turn {turn}, {count} from rank {peer}"
