"""A rank that opens torch's default group: `store_rank.py RANK ADDRESS`, of the store."""

import os
import sys
from datetime import timedelta

from torch import distributed as dist

os.environ.update(
    RANK=sys.argv[1],
    WORLD_SIZE="2",
    MASTER_ADDR=sys.argv[2],
    MASTER_PORT="29511",
    TORCH_CPP_LOG_LEVEL="ERROR",
)
dist.init_process_group("slackline", timeout=timedelta(seconds=60))
