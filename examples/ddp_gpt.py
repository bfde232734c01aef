"""Train a small GPT with torch's DistributedDataParallel over slackline, which is unchanged.

    slackline run --ranks 2 examples/ddp_gpt.py

The text is the standard library's argparse, byte by byte. Each rank takes other pieces of it.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

BYTES, WIDTH, LENGTH = 256, 64, 32


class GPT(nn.Module):
    """A language model that predicts the next byte, with causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTES, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        block = nn.TransformerEncoderLayer(
            WIDTH, 4, 4 * WIDTH, dropout=0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, BYTES)

    def forward(self, text: Tensor) -> Tensor:
        """Return the loss of the predictions of all bytes of a text but the first one."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        x = self.blocks(self.bytes(text[:, :-1]) + self.places, mask, is_causal=True)
        return cross_entropy(self.head(x).flatten(0, 1), text[:, 1:].flatten())


def main() -> None:
    dist.init_process_group("slackline")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = DistributedDataParallel(GPT())
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
    mine = nn.utils.parameters_to_vector(model.parameters()).detach()
    everyone = [torch.empty_like(mine) for _ in range(ranks)]
    dist.all_gather(everyone, mine)
    if rank == 0:
        equal = all(torch.equal(mine, other) for other in everyone)
        print(f"loss {losses[0]:.4f}, then {losses[-1]:.4f}")
        print(f"parameters of {ranks} ranks: {'equal bits' if equal else 'different bits'}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
