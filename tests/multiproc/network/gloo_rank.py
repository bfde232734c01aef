"""A rank of torch's backend gloo on a host of a Wiring: `gloo_rank.py RANK SIZE FOLDER`.

The rank performs an all_reduce of 1 MiB with the other ranks and prints the result in one line.
"""

import os
import sys
from datetime import timedelta

import torch
from torch import distributed


def main(rank: int, size: int, folder: str) -> None:
    """Open a group through a store in a file, reduce, and print "reduces" or the error."""
    told = os.fdopen(os.dup(1), "w")
    try:
        distributed.init_process_group(
            "gloo",
            init_method=f"file://{folder}/gloo",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=60),
        )
        data = torch.arange(1 << 18, dtype=torch.int32) * (rank + 1)
        distributed.all_reduce(data)
        right = torch.arange(1 << 18, dtype=torch.int32) * (size * (size + 1) // 2)
        print("reduces" if torch.equal(data, right) else "gives wrong sums", file=told)
        distributed.destroy_process_group()
    except (RuntimeError, ValueError) as error:
        print(f"fails: {' '.join(str(error).split())[:300]}", file=told)
    told.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
