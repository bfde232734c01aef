"""Train with Lightning over slackline:

    slackline run --ranks 2 examples/libraries/train_lightning.py

Needs lightning: pip install 'slackline-torch[programs]'.
"""

import tempfile

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Sums(lightning.LightningModule):
    """A network that learns to add 16 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.mse_loss(self.layers(x), y)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    lightning.seed_everything(1, verbose=False)
    x = torch.randn(256, 16)
    batches = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
    module = Sums()
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=2,
            strategy=DDPStrategy(process_group_backend="slackline"),
            max_epochs=12,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            default_root_dir=folder,
        )
        trainer.fit(module, batches)
    if dist.get_rank() == 0:
        print(f"loss {module.losses[0]:.4f}, then {module.losses[-1]:.4f}")
        print(f"over {dist.get_backend()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
