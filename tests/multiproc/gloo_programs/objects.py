"""A program that exchanges Python objects in the default group and in a new group."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
mine = {"rank": rank, "name": "x" * rank, "shape": (rank, 2)}
everyone = [None] * ranks
dist.all_gather_object(everyone, mine)
collected = [None] * ranks if rank == 0 else None
dist.gather_object(mine, collected, dst=0)
shared = [mine if rank == ranks - 1 else None, 7 if rank == ranks - 1 else None]
dist.broadcast_object_list(shared, src=ranks - 1)
received = [None]
dist.scatter_object_list(received, everyone if rank == 0 else None, src=0)
pair = dist.new_group([0, ranks - 1], backend="gloo")
if rank == 0:
    dist.send_object_list([mine, torch.arange(3)], dst=ranks - 1, group=pair)
elif rank == ranks - 1:
    letters = [None, None]
    dist.recv_object_list(letters, src=0, group=pair)
    assert letters[0]["rank"] == 0
    assert letters[1].tolist() == [0, 1, 2]
dist.barrier()
assert received == [mine]
assert shared == [everyone[-1], 7]
if rank == 0:
    assert collected == everyone
    print(everyone)
    print(f"{dist.get_backend()} through {dist.group.WORLD.name()}")
dist.destroy_process_group()
