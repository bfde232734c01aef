"""A pipeline plan printed as a grid: a column for each rank, a row for each step."""

from collections.abc import Sequence
from itertools import zip_longest

from slackline.plan.pipeline._plan import PipelinePlan
from slackline.plan.pipeline._replay import Timing
from slackline.plan.pipeline._scenario import PS_PER_MS

__all__ = ["grid", "timetable"]


def grid(plan: PipelinePlan, mark: tuple[int, int] | None = None) -> str:
    """Format a plan's programs side by side as text: row i has each rank's instruction i.

    `mark` is a (rank, index) that an arrow points at.

       rank 0  rank 1
    0  0F0     1F0
    1  0F1     1B0    <- rank 1
    2  0B0     1W0
    """
    tokens = ([str(each) for each in program] for program in plan.programs)
    body = [[str(step), *row] for step, row in enumerate(zip_longest(*tokens, fillvalue=""))]
    head = ["", *(f"rank {rank}" for rank in range(plan.ranks))]
    arrows = [""] * (1 + len(body))
    if mark is not None:
        arrows[1 + mark[1]] = f"  <- rank {mark[0]}"
    return _columns([head, *body], arrows)


def timetable(plan: PipelinePlan, timing: Timing) -> str:
    """Format a timed plan as text: a row for each moment at which an instruction starts.

    A bar says that the rank goes on with its instruction, a blank that the rank waits.

      ms  rank 0  rank 1
       0  F0
      10  F1      F0
      20          B0
      25  |       W0
    """
    orders = plan.orders()
    moments = sorted({start for starts in timing.start_ps for start in starts})
    places = {moment: row for row, moment in enumerate(moments)}
    cells = [[""] * plan.ranks for _ in moments]
    for rank, order in enumerate(orders):
        for token, start, end in zip(
            order, timing.start_ps[rank], timing.end_ps[rank], strict=True
        ):
            row = places[start]
            cells[row][rank] = token
            row += 1
            while row < len(moments) and moments[row] < end:
                cells[row][rank] = "|"
                row += 1
    rows = [["ms", *(f"rank {rank}" for rank in range(plan.ranks))]]
    rows += [
        [f"{moment / PS_PER_MS:.12g}", *row] for moment, row in zip(moments, cells, strict=True)
    ]
    return _columns(rows)


def _columns(rows: list[list[str]], tails: Sequence[str] | None = None) -> str:
    """Format rows of cells as aligned columns, the first column aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for (label, *row), tail in zip(rows, tails or [""] * len(rows), strict=True):
        texts = (cell.ljust(width) for cell, width in zip(row, widths[1:], strict=True))
        lines.append(f"{label:>{max(3, widths[0])}}  {'  '.join(texts)}{tail}".rstrip())
    return "\n".join(lines)
