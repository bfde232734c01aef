"""A rank's groups in torch.distributed."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from _harness.ranks import Place


def join(place: Place, timeout: timedelta) -> dist.ProcessGroup:
    """This process as a rank of a slackline group, computing on one thread; the group."""
    torch.set_num_threads(1)
    # Torch exports it at run time, but not to the type checker.
    store = dist.FileStore(  # type: ignore[attr-defined]
        str(place.store), place.size
    )
    dist.init_process_group(
        "slackline", store=store, rank=place.rank, world_size=place.size, timeout=timeout
    )
    world = dist.group.WORLD
    assert world is not None
    return world
