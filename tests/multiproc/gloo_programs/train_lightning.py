"""A program that trains with Lightning's DDP strategy over gloo."""

import logging
import tempfile
import warnings

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Sums(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
        self.losses = []

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.mse_loss(self.layers(x), y)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)

    def on_train_end(self):
        flat = nn.utils.parameters_to_vector(self.parameters()).detach()
        everyone = self.all_gather(flat)
        if self.trainer.is_global_zero:
            print(f"first loss {self.losses[0]:.6f}")
            print(f"last loss {self.losses[-1]:.6f}")
            print(f"parameters alike: {all(torch.equal(flat, other) for other in everyone)}")
            print(f"{dist.get_backend()} through {dist.group.WORLD.name()}")


lightning.seed_everything(1, verbose=False)
x = torch.randn(256, 16)
batches = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
with tempfile.TemporaryDirectory() as folder:
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_epochs=12,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(Sums(), batches)
dist.destroy_process_group()
