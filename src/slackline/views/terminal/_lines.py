"""Rows in columns, as lines of text that fit a width."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

__all__ = ["Column", "cut", "lines_of", "printable"]

_BETWEEN = "  "
_LEAST_REST = 12
"""The least width of the rest of a line in which a sentence is shown."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    name: str
    drop: int = 0
    """The order in which columns are left out of a narrow table: the largest first, 0 never."""
    right: bool = True
    """Whether the cells are aligned to the right."""


def printable(text: str) -> str:
    """Return `text` with "?" in place of each character that could move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else "?" for each in text)


def lines_of(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    sentence: str = "",
) -> list[str]:
    """Return a line of names and one line for each row, each at most `width` cells wide.

    Each row has a cell for each column. With `sentence`, the name of a further column, each row has
    one more text, which is cut off at the end of its line. In a narrow table columns are left out.
    """
    table = [[column.name for column in columns], *(row[: len(columns)] for row in rows)]
    table = [[printable(cell) for cell in row] for row in table]
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    shown = list(range(len(columns)))
    least = _LEAST_REST if sentence else -len(_BETWEEN)
    while _total(shown, widths) + least > width:
        droppable = [at for at in shown if columns[at].drop]
        if not droppable:
            break
        shown.remove(max(droppable, key=lambda at: columns[at].drop))
    rests = [sentence, *(printable(row[len(columns)]) if sentence else "" for row in rows)]
    lines = []
    for row, rest in zip(table, rests, strict=True):
        cells = [_cell(row[at], widths[at], columns[at]) for at in shown]
        lines.append(cut(_BETWEEN.join([*cells, rest] if sentence else cells).rstrip(), width))
    return lines


def _total(shown: Sequence[int], widths: Sequence[int]) -> int:
    """Return the width of the columns, with the gap before the rest of the line."""
    return sum(widths[at] + len(_BETWEEN) for at in shown)


def _cell(text: str, width: int, column: Column) -> str:
    gap = " " * (width - cell_len(text))
    return gap + text if column.right else text + gap


def cut(text: str, width: int) -> str:
    """Return `text`, cut to `width` cells, with an ellipsis where text is missing."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1) + "…" if width > 0 else ""
