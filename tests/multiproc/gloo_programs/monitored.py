"""A program that finds a missing rank with monitored_barrier."""

import re
from datetime import timedelta

import torch.distributed as dist

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
dist.monitored_barrier()
dist.monitored_barrier(timeout=timedelta(seconds=20), wait_all_ranks=True)
half = dist.new_group(list(range(ranks)), backend="gloo")
if rank == 0:
    try:
        dist.monitored_barrier(half, timeout=timedelta(milliseconds=200), wait_all_ranks=True)
    except RuntimeError as error:
        missing = re.sub(r"\[Rank 0\]|200|0:00", "", str(error))
        print("missing", sorted(map(int, set(re.findall(r"\b[1-9]\b", missing)))))
dist.barrier()
if rank == 0:
    print(f"{dist.get_backend()} through {dist.group.WORLD.name()}")
dist.destroy_process_group()
