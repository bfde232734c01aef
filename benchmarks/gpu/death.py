"""The death of a rank while another one's stream waits for an operation of both."""

from __future__ import annotations

import os
import time

import torch
from rank import Rank

from slackline.errors import SlacklineError

__all__ = ["run"]

_LIMIT_S = 5.0
_MOST = 3
"""The operations after the death; the first error may come with the second of them."""


def run(rank: Rank) -> None:
    dist = rank.join(limit_s=_LIMIT_S)
    tensor = torch.ones(1000, device=rank.device)
    dist.all_reduce(tensor)
    rank.synchronize()
    if rank.rank == 1:
        os._exit(0)
    begun, said = time.perf_counter(), "nothing"
    try:
        for _ in range(_MOST):
            dist.all_reduce(tensor)
            rank.synchronize()
    except (SlacklineError, RuntimeError) as error:
        said = f"{type(error).__name__}: {error}"[:90]
    rank.note(
        "a rank dies",
        seconds=round(time.perf_counter() - begun, 2),
        said=said,
        results_are_nan=str(bool(torch.isnan(tensor).any())),
    )
    os._exit(0 if said != "nothing" else 1)  # The group cannot be destroyed in good order.
