"""Add one tensor of each rank: slackline run --ranks 2 examples/first_collective.py"""

import torch
from torch import distributed as dist

dist.init_process_group("slackline")
numbers = torch.full((4,), dist.get_rank() + 1.0)
dist.all_reduce(numbers)
print("sum over", dist.get_world_size(), "ranks:", numbers.tolist())
dist.destroy_process_group()
