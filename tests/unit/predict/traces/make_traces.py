"""Record traces of torch.profiler for the tests: DistributedDataParallel on two ranks.

    slackline run --ranks 2 tests/unit/predict/traces/make_traces.py gloo
    slackline run --ranks 2 tests/unit/predict/traces/make_traces.py slackline

Each rank writes traces/BACKEND/RANK.json.gz beside this file.
"""

import gzip
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

WIDTH, LAYERS, STEPS = 128, 3, 5


def main(backend: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    rank = dist.get_rank()
    folder = Path(__file__).with_name(backend)
    folder.mkdir(exist_ok=True)
    plain = folder / f"{rank}.json"
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    wrapped = DistributedDataParallel(model, bucket_cap_mb=WIDTH * WIDTH * 4 / (1 << 20))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=3, active=STEPS),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(plain)),
        record_shapes=True,
    ) as profiler:
        for _ in range(3 + STEPS):
            optimizer.zero_grad()
            wrapped(torch.randn(16, WIDTH)).square().mean().backward()
            optimizer.step()
            profiler.step()
    with gzip.GzipFile(f"{plain}.gz", "wb", mtime=0) as packed:
        packed.write(plain.read_bytes())
    os.remove(plain)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
