"""What ranks around a ring do; the nic of each is named in NICS."""

import hashlib
import os
import signal
from datetime import timedelta

import torch
from torch import distributed as dist

from slackline.errors import SlacklineError
from slackline.wire import DType, ReduceOp

FP32, SUM = DType.FLOAT32, ReduceOp.SUM
OPS = [dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX]
DTYPES = [torch.float32, torch.int32, torch.bfloat16, torch.float16, torch.float64]


def joined(rank, size, path):
    """Joins the ring, and returns its group."""
    os.environ["SLACKLINE_NIC"] = os.environ["NICS"].split(",")[rank]
    dist.init_process_group(
        "slackline",
        init_method=f"file://{path}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=30),
    )
    return dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).nic


def contribution(rank, turn, count, dtype=torch.float32):
    seed = torch.Generator().manual_seed(1000 * turn + rank)
    return (torch.randn(count, generator=seed) * 900).to(dtype)


def digests(rank, size, path):
    """Of sums of all kinds: equal bits have equal digests; and what the device took."""
    group = joined(rank, size, path)
    digest = hashlib.sha256()
    most = int(os.environ.get("MOST", "100_003"))
    for turn, count in enumerate(each for each in (0, 1, 17, 5000, 100_003) if each <= most):
        for dtype in DTYPES:
            for op in OPS:
                tensor = contribution(rank, turn, count, dtype)
                dist.all_reduce(tensor, op)
                digest.update(tensor.view(torch.uint8).numpy().tobytes())
    taken = group.counters()["device_frames_taken"]
    plan = group.plan_for(1 << 20).name
    dist.destroy_process_group()
    return digest.hexdigest(), plan, taken > 0


def killed(rank, size, path):
    joined(rank, size, path)
    dist.all_reduce(torch.ones(1000))
    tensor = torch.ones(300_000)
    work = dist.all_reduce(tensor, async_op=True)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        work.wait()
        for _ in range(4):
            dist.all_reduce(tensor)
    except SlacklineError as error:
        return type(error).__name__, error.peer
    return "nothing", None
