"""Test that a job in which process groups come and go stays as it was: its memory, descriptors,
threads, tables, and the keys that each group leaves in the store.
"""

import gc
import os
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d
from waiting import until

from slackline.backend._context import create

GROUPS = 2000
WARM_UP = 200
RESIDENT = 8 << 20
"""The bytes by which resident memory may change. 1,800 groups that lost 5 kB each would exceed
it."""
KEYS = 40
"""The most keys that a group of two ranks may leave in the store, torch's own included. The keys
stay until the job's store ends, because torch's FileStore cannot delete them."""


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def tables() -> list[int]:
    """Return the sizes of all tables of this rank that could grow with groups."""
    nic = create._nic
    engine = nic._running.engine
    links = nic._network._links
    counters = engine.counters()
    return [
        len(os.listdir("/proc/self/fd")),
        threading.active_count(),
        len(create._groups),
        len(create._made),
        len(nic._groups),
        len(nic._epochs._reserved),
        len(nic._monitors._open),
        len(nic._records._peers),
        len(links._peers),
        len(links._by_link),
        len(links._by_rendezvous),
        len(links._context.manager._tasks),
        *(counters[name] for name in ("arena_bytes", "ring_bytes", "slots")),
    ]


def come_and_go(rank, size):
    ones = torch.ones(4)
    store = distributed_c10d._get_default_store()
    for number in range(GROUPS):
        group = dist.new_group([0, 1])
        total = ones.clone()
        dist.all_reduce(total, group=group)
        assert total.tolist() == [size] * 4
        dist.destroy_process_group(group)
        del group
        if number == WARM_UP:
            gc.collect()
            before, memory, keys = tables(), resident(), store.num_keys()
    gc.collect()
    until(lambda: tables() == before, lambda: f"{tables()} is not {before}")
    dist.barrier()
    grown = store.num_keys() - keys
    return {"memory": resident() - memory, "keys": grown / (GROUPS - WARM_UP - 1)}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_thousand_groups_leave_a_job_as_it_was(job):
    for found in job(2, come_and_go, timeout=timedelta(seconds=60), seconds=800):
        assert found["memory"] < RESIDENT
        assert found["keys"] < KEYS
