"""Process groups of torch.distributed for a benchmark's ranks."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from _harness.ranks import Place


def join(place: Place, timeout: timedelta, backend: str = "slackline") -> dist.ProcessGroup:
    """Make this process a rank of a default process group of `backend`, and return the group.

    The process computes on one thread from then on.
    """
    torch.set_num_threads(1)
    # FileStore exists at run time, but torch's types do not export it.
    store = dist.FileStore(  # type: ignore[attr-defined]
        str(place.store), place.size
    )
    dist.init_process_group(
        backend, store=store, rank=place.rank, world_size=place.size, timeout=timeout
    )
    world = dist.group.WORLD
    assert world is not None
    return world
