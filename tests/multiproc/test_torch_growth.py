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
from engine_tables import table_sizes
from torch import distributed as dist
from torch.distributed import distributed_c10d
from waiting import until

from slackline.backend._context import create

GROUPS = 2000
WARM_UP = 200
RESIDENT = 4 << 20
"""The bytes by which resident memory may change: 2.3 kB for each of the 1,800 groups. The rank
that serves the store is not measured, because it keeps the keys."""
KEYS = 7
"""The keys that a group of two ranks leaves in the store, torch's own included. They stay until
the job's store ends."""


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def tables() -> list[int]:
    """Return the sizes of all tables of this rank that could grow with groups."""
    return [
        len(os.listdir("/proc/self/fd")),
        threading.active_count(),
        len(create._groups),
        len(create._made),
        *table_sizes(create._nic),
    ]


def over_tcp_store(rank, size):
    """Open the job's group anew over a TCPStore, and return the store.

    A FileStore, which the job began with, keeps a copy of all keys in every rank.
    """
    first = distributed_c10d._get_default_store()
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
        first.set("port", str(store.port))
    else:
        store = dist.TCPStore("127.0.0.1", int(first.get("port")), size)
    dist.destroy_process_group()
    dist.init_process_group("slackline", store=store, rank=rank, world_size=size)
    return store


def come_and_go(rank, size):
    ones = torch.ones(4)
    store = over_tcp_store(rank, size)
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
    dist.barrier()  # Rank 0 holds the store.
    return {"memory": resident() - memory, "keys": grown / (GROUPS - WARM_UP - 1)}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_thousand_groups_leave_a_job_as_it_was(job):
    found = job(2, come_and_go, timeout=timedelta(seconds=60), seconds=800)
    assert found[1]["memory"] < RESIDENT
    assert [each["keys"] for each in found] == [KEYS, KEYS]
