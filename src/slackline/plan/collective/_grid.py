"""A plan printed as a grid: a column for each member, a row for each step."""

from itertools import zip_longest

from slackline.plan.collective._plan import CollectivePlan

__all__ = ["grid"]


def grid(plan: CollectivePlan, mark: tuple[int, int] | None = None) -> str:
    """Format a plan's programs side by side as text: row i has each member's instruction i.

    `mark` is a (rank, index) that an arrow points at.

       rank 0         rank 1
    0  SEND_1C0       SEND_0C0
    1  BUFFER_1C0     BUFFER_0C0     <- rank 1
    2  REDUCE_ALL_C0  REDUCE_ALL_C0
    """
    rows = [[_head(plan, member) for member in range(plan.members)]]
    tokens = ([str(each) for each in program] for program in plan.programs)
    rows += [list(row) for row in zip_longest(*tokens, fillvalue="")]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    margin = max(3, len(str(len(rows) - 2)))
    lines = []
    for step, row in enumerate(rows, start=-1):
        cells = "  ".join(token.ljust(width) for token, width in zip(row, widths, strict=True))
        label = "" if step < 0 else str(step)
        arrow = f"  <- {_head(plan, mark[0])}" if mark is not None and mark[1] == step else ""
        lines.append(f"{label:>{margin}}  {cells}{arrow}".rstrip())
    return "\n".join(lines)


def _head(plan: CollectivePlan, member: int) -> str:
    return f"rank {member}" if member < plan.ranks else f"helper {member}"
