"""Train a small GPT whose parameters are sharded over the ranks by FSDP2 (`fully_shard`).

    slackline run --ranks 2 examples/fsdp2_gpt.py

The text is the standard library's argparse, byte by byte. Each rank takes other pieces of it, and
keeps its shard of each parameter, of its gradient and of the optimizer's state.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

BYTES, WIDTH, LENGTH = 256, 64, 32


class GPT(nn.Module):
    """A language model that predicts the next byte, with causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTES, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, 4, 4 * WIDTH, dropout=0, batch_first=True, norm_first=True
            )
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, BYTES)

    def forward(self, text: Tensor) -> Tensor:
        """Return the loss of the predictions of all bytes of a text but the first one."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        x = self.bytes(text[:, :-1]) + self.places
        for block in self.blocks:
            x = block(x, mask, is_causal=True)
        return cross_entropy(self.head(x).flatten(0, 1), text[:, 1:].flatten())


def main() -> None:
    dist.init_process_group("slackline")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    torch.manual_seed(1)
    model = GPT()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)  # gathered before its forward and backward, freed after them
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8)
    chosen = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(40):
        starts = torch.randint(len(text) - LENGTH, (16,), generator=chosen)
        pieces = torch.stack([text[start : start + LENGTH + 1] for start in starts.tolist()]).long()
        loss = model(pieces)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    here = sum(parameter.to_local().numel() for parameter in model.parameters())
    whole = sum(parameter.numel() for parameter in model.parameters())
    if rank == 0:
        print(f"loss {losses[0]:.4f}, then {losses[-1]:.4f}")
        print(f"rank 0 of {ranks} keeps {here} of {whole} parameters")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
