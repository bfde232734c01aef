"""Tests that results under any fault are bit-identical to the results of a network without
faults."""

import pytest
from matrix_table import CELLS, QUICK_CELLS, Cell
from matrix_work import work

from slackline.testing import run_ranks

RANKS = 3
ROUNDS = 3


def check(cell: Cell) -> None:
    counters = run_ranks(
        RANKS, lambda group: work(group, ROUNDS), options=cell.rails.options(faults=cell.text)
    )
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
