"""The torus: ranks stand in p rows of q columns, with a ring along each row and each column.

Rank i * q + j stands in row i, column j, and owns the chunk of that number. Chunks travel along the
row to the owner's column, p at a time, and then along the column to the owner's row. The result
goes back the same way.

    0 - 1 - 2 -
    |   |   |        p = 2 rows, q = 3 columns
    3 - 4 - 5 -
    |   |   |

The torus takes 2 (p - 1) + 2 (q - 1) steps in place of the ring's 2 (p q - 1), and moves as many
bytes: (q - 1) / q S along the row and (p - 1) / p S / q along the column make (n - 1) / n S, twice.

A prime number of ranks makes one row, which is the ring.
"""

import math
from collections.abc import Iterator

from slackline.plan.collective._plan import Instruction, Kind

__all__ = ["all_reduce_torus", "torus_program", "torus_shape"]


def torus_shape(ranks: int) -> tuple[int, int]:
    """Return (p, q) with p * q = n and p <= q, where p is as large as possible."""
    rows = next(p for p in range(math.isqrt(ranks), 0, -1) if ranks % p == 0)
    return rows, ranks // rows


def all_reduce_torus(rank: int, ranks: int, root: int) -> Iterator[Instruction]:
    """Yield a rank's instructions: reduce along row, then column; spread along column, then row."""
    return torus_program(rank, *torus_shape(ranks))


def torus_program(
    rank: int, rows: int, columns: int, *, first_row: int = 0
) -> Iterator[Instruction]:
    """Yield the instructions of a rank of a torus of `rows` x `columns` ranks.

    The chunks of a column are listed from the chunk of row `first_row` on.
    """
    row, column = divmod(rank, columns)
    right, left = row * columns + (column + 1) % columns, row * columns + (column - 1) % columns
    down, up = (row + 1) % rows * columns + column, (row - 1) % rows * columns + column

    def of_column(where: int) -> list[int]:
        return [(first_row + each) % rows * columns + where % columns for each in range(rows)]

    def of_row(where: int) -> int:
        return where % rows * columns + column

    for step in range(1, columns):
        complete = rows == 1 and step == columns - 1
        for chunk in of_column(column - step):
            yield Instruction(Kind.SEND, right, chunk)
        for chunk in of_column(column - step - 1):
            yield Instruction(Kind.ADD, left, chunk, last=complete)
    for step in range(1, rows):
        yield Instruction(Kind.SEND, down, of_row(row - step))
        yield Instruction(Kind.ADD, up, of_row(row - step - 1), last=step == rows - 1)
    for step in range(rows - 1):
        yield Instruction(Kind.SEND, down, of_row(row - step))
        yield Instruction(Kind.COPY, up, of_row(row - step - 1))
    for step in range(columns - 1):
        for chunk in of_column(column - step):
            yield Instruction(Kind.SEND, right, chunk)
        for chunk in of_column(column - step - 1):
            yield Instruction(Kind.COPY, left, chunk)
