"""torch's own analyser of flight recorders, run on a folder of dumps."""

import gc
import pickle
from pathlib import Path
from typing import Any

from torch.distributed.flight_recorder import fr_trace

__all__ = ["analysed", "outcomes"]


def analysed(folder: Path) -> Any:
    """Return the analyser's database for the dumps in `folder`.

    Equal to the command `torchfrtrace FOLDER -o FILE`, whose file is read back.
    """
    output = folder.with_name(f"{folder.name}.analysis")
    try:
        fr_trace.main([str(folder), "-o", str(output)])
    finally:
        gc.enable()  # the analyser switches the collector off
    _, database = pickle.loads(output.read_bytes())
    return database


def outcomes(folder: Path) -> list[tuple[str, str, int, set[int] | None]]:
    """Return (group, operation, number, missing ranks) of each operation the analyser has found.

    Fails if the analyser has found an operation whose calls differ between the ranks.
    """
    found = analysed(folder).collectives
    assert all(each.pass_check for each in found), found
    return [
        (each.group_id, each.collective_name, each.collective_seq_id, each.missing_ranks)
        for each in found
    ]
