"""A rank's groups in torch.distributed."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from _harness.ranks import Place


def join(place: Place, timeout: timedelta, backend: str = "slackline") -> dist.ProcessGroup:
    """Make this process, computing on one thread, a rank of a group of `backend`; return the group.

    It is the process's default group.
    """
    torch.set_num_threads(1)
    # Torch exports it at run time, but not to the type checker.
    store = dist.FileStore(  # type: ignore[attr-defined]
        str(place.store), place.size
    )
    dist.init_process_group(
        backend, store=store, rank=place.rank, world_size=place.size, timeout=timeout
    )
    world = dist.group.WORLD
    assert world is not None
    return world
