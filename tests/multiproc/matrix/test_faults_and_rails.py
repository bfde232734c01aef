"""Whatever is wrong on the way, operations end with the bits of a network on which nothing is."""

import numpy as np
import pytest
from matrix_table import CELLS, QUICK_CELLS, Cell

from slackline.nic import Group
from slackline.testing import run_ranks
from slackline.wire import DType, ReduceOp

RANKS = 3
COUNTS = (1, 1000, 60_007, 300_001)
ROUNDS = 3


def numbers(rank: int, turn: int, count: int) -> np.ndarray:
    generator = np.random.default_rng([rank, turn, count])
    return generator.standard_normal(count).astype(np.float32)


def sums(group: Group, turn: int) -> None:
    """Several at once, in place and not; in rank order, so the reference adds left to right."""
    posted = []
    for tag, count in enumerate(COUNTS):
        mine = numbers(group.rank, turn, count)
        target = mine.copy() if tag % 2 else np.empty_like(mine)
        source = target if tag % 2 else mine
        at = source.ctypes.data, target.ctypes.data
        transfer = group.all_reduce(*at, count, DType.FLOAT32, ReduceOp.SUM, tag=tag)
        posted.append((transfer, source, target, count))
    for transfer, _, target, count in posted:
        transfer.wait()
        expected = numbers(0, turn, count)
        for rank in range(1, group.size):
            expected = expected + numbers(rank, turn, count)
        assert target.tobytes() == expected.tobytes(), f"turn {turn}, {count} elements"


def messages(group: Group, turn: int) -> None:
    """From each rank to each, short and long, all under way at once."""
    posted = []
    for peer in range(group.size):
        if peer == group.rank:
            continue
        for tag, count in enumerate(COUNTS):
            outgoing = numbers(group.rank, turn + peer, count)
            incoming = np.zeros(count, np.float32)
            get = group.recv(incoming.ctypes.data, count, DType.FLOAT32, peer, tag)
            put = group.send(outgoing.ctypes.data, count, DType.FLOAT32, peer, tag)
            posted.append((get, put, outgoing, incoming, peer, count))
    for get, put, _, incoming, peer, count in posted:
        get.wait()
        put.wait()
        assert incoming.tobytes() == numbers(peer, turn + group.rank, count).tobytes()


def work(group: Group) -> dict[str, int]:
    for turn in range(ROUNDS):
        sums(group, turn)
        messages(group, turn)
    group.barrier(blocking=True)
    rails = group._engine.rails()  # type: ignore[attr-defined]
    resent = sum(rail.packets_resent for rail in rails)
    counters = dict(group.counters()) | {"packets_resent": resent}
    group.barrier(blocking=True)
    return counters


def check(cell: Cell) -> None:
    counters = run_ranks(RANKS, work, options=cell.rails.options(faults=cell.text))
    total = {name: sum(each.get(name, 0) for each in counters) for name in counters[0]}
    kinds = {kind for kind in cell.rails.kinds if total.get(f"{kind}_frames_sent", 0) > 0}
    assert kinds == set(cell.rails.kinds), f"not every rail was used: {total}"
    assert cell.sign is None or total[cell.sign] > 0, f"the fault was not there: {total}"


@pytest.mark.parametrize("cell", QUICK_CELLS, ids=str)
def test_no_fault_of_the_network_changes_a_bit(cell: Cell) -> None:
    check(cell)


@pytest.mark.slow
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell not in QUICK_CELLS], ids=str)
def test_no_fault_of_the_network_changes_a_bit_on_any_rails(cell: Cell) -> None:
    check(cell)
