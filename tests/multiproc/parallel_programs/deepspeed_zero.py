"""A program that trains with DeepSpeed's ZeRO on CPUs.

DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 deepspeed_zero.py BACKEND STAGE
"""

import sys

import deepspeed
import torch
import torch.distributed as dist
from parallel_model import Model, digest, loss_of, sentences

# DeepSpeed would compile an operation of its own that reduces in place of torch's backend.
deepspeed.ops.__compatible_ops__.clear()
backend, stage = sys.argv[1], int(sys.argv[2])
deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False)
torch.manual_seed(1)
model = Model()
config = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_clipping": 1.0,
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
    "zero_optimization": {"stage": stage, "reduce_bucket_size": 2000},
}
engine, *_ = deepspeed.initialize(
    model=model, optimizer=torch.optim.Adam(model.parameters(), lr=0.01), config=config
)
data = torch.Generator().manual_seed(2 + dist.get_rank())
for _ in range(5):
    words = sentences(data)
    loss = loss_of(engine(words), words)
    engine.backward(loss)
    engine.step()
    print(f"loss {loss.item().hex()}")
with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
    print(f"parameters {digest(model.parameters())}")
print(f"backend {dist.get_backend()}")
dist.destroy_process_group()
