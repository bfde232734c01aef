"""A program that saves and loads a sharded model with torch.distributed.checkpoint, also in the
background."""

import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard


def make(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    return fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))


dist.init_process_group("gloo")
rank = dist.get_rank()
folder = [tempfile.mkdtemp() if rank == 0 else None]
dist.broadcast_object_list(folder, src=0)
saved = make(seed=1)
dcp.save({"model": get_model_state_dict(saved)}, checkpoint_id=f"{folder[0]}/now")
later = dcp.async_save({"model": get_model_state_dict(saved)}, checkpoint_id=f"{folder[0]}/later")
later.result()
for place in ("now", "later"):
    loaded = make(seed=2)
    state = {"model": get_model_state_dict(loaded)}
    dcp.load(state, checkpoint_id=f"{folder[0]}/{place}")
    set_model_state_dict(loaded, state["model"])
    pairs = zip(loaded.parameters(), saved.parameters(), strict=True)
    same = all(torch.equal(a.full_tensor(), b.full_tensor()) for a, b in pairs)
    if rank == 0:
        print(f"{place}: {'equal' if same else 'different'}")
dist.barrier()
if rank == 0:
    shutil.rmtree(folder[0])
    print(f"{dist.get_backend()} through {dist.group.WORLD.name()}")
dist.destroy_process_group()
