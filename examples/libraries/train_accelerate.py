"""Train with Accelerate over slackline:

    slackline run --ranks 2 examples/libraries/train_accelerate.py

Needs accelerate: pip install 'slackline-torch[programs]'.
"""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    dist.init_process_group("slackline")  # Accelerate uses the existing process group.
    accelerator = Accelerator(cpu=True)
    set_seed(1)
    x = torch.randn(256, 16)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    model, optimizer, batches = accelerator.prepare(
        model,
        torch.optim.Adam(model.parameters(), lr=0.01),
        DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True),
    )
    losses = []
    for _ in range(12):
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            losses.append(accelerator.reduce(loss.detach(), reduction="mean").item())
    if accelerator.is_main_process:
        print(f"loss {losses[0]:.4f}, then {losses[-1]:.4f}")
        print(f"over {dist.get_backend()}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
