"""PyTorch's pipelining CSV: a row for each rank, a cell for each step, empty where the rank idles.

PyTorch's letters are F, I (backward for the input), W and B (full backward). The letters of this
package are F, B, W and BW. The parser leaves out cells of communication (2SEND_F0, 1RECV_B3) and of
sharding (0UNSHARD, 0RESHARD, 0REDUCE_GRAD), since the computations determine which messages each
rank needs.
"""

import csv
import io
import re

from slackline.errors import UsageError
from slackline.plan.pipeline._instruction import Instruction, Kind
from slackline.plan.pipeline._plan import PipelinePlan

__all__ = ["from_torch_csv", "to_torch_csv"]

_OUT = {Kind.F: "F", Kind.B: "I", Kind.W: "W", Kind.BW: "B"}
_IN = {letter: kind for kind, letter in _OUT.items()}
_CELL = re.compile(r"(\d+)(F|I|W|B)(\d+)", re.ASCII)
_LEFT_OUT = re.compile(
    r"\d+(SEND_F|RECV_F|SEND_B|RECV_B)\d+|\d+(UNSHARD|RESHARD|REDUCE_GRAD)", re.ASCII
)


def to_torch_csv(plan: PipelinePlan) -> str:
    """Return the plan as the CSV that PyTorch's `_load_csv(..., format="compute_only")` reads."""
    text = io.StringIO()
    writer = csv.writer(text)
    for program in plan.programs:
        writer.writerow([f"{each.stage}{_OUT[each.kind]}{each.microbatch}" for each in program])
    return text.getvalue()


def from_torch_csv(text: str, name: str = "csv") -> PipelinePlan:
    """Parse the CSV that PyTorch's `_dump_csv` writes in either format; the plan is not validated.

    Stages, their ranks and the number of microbatches are read off the cells. Raises UsageError for
    a malformed cell, and for a stage that is on two ranks or on none.
    """
    programs = []
    for rank, row in enumerate(csv.reader(io.StringIO(text))):
        cells = ((step, cell.strip()) for step, cell in enumerate(row))
        programs.append(
            tuple(
                _instruction(rank, step, cell)
                for step, cell in cells
                if cell and not _LEFT_OUT.fullmatch(cell)
            )
        )
    ranks: dict[int, int] = {}
    for rank, program in enumerate(programs):
        if not program:
            raise UsageError(f"the CSV's row {rank} has no computation")
        for each in program:
            if ranks.setdefault(each.stage, rank) != rank:
                raise UsageError(
                    f"the CSV has stage {each.stage} on rank {ranks[each.stage]} and, in "
                    f"{each.in_stage}, on rank {rank}"
                )
    if not programs:
        raise UsageError("the CSV has no rows")
    for stage in range(max(ranks) + 1):
        if stage not in ranks:
            raise UsageError(f"the CSV has stages up to {max(ranks)}, but nothing of stage {stage}")
    return PipelinePlan(
        name=name,
        microbatches=1 + max(each.microbatch for program in programs for each in program),
        placement=tuple(ranks[stage] for stage in sorted(ranks)),
        programs=tuple(programs),
    )


def _instruction(rank: int, step: int, cell: str) -> Instruction:
    match = _CELL.fullmatch(cell)
    if match is None:
        raise UsageError(
            f'the CSV\'s row {rank}, step {step} has "{cell}", '
            "which is no computation like 2F0, 2I0, 2W0, 2B0"
        )
    return Instruction(int(match[1]), _IN[match[2]], int(match[3]))
