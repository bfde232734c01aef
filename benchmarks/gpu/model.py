"""A GPT, of 67 million parameters or tiny."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["GPT", "LARGE", "TINY", "Shape", "loss_of"]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a GPT, and those of a rank's batch."""

    words: int
    width: int
    heads: int
    blocks: int
    context: int
    rows: int


LARGE = Shape(words=32768, width=512, heads=8, blocks=16, context=512, rows=16)
"""67.4 million parameters: 16.8 of the words, which the output shares, and 50.4 of the blocks."""
TINY = Shape(words=64, width=32, heads=2, blocks=2, context=16, rows=2)


class Block(nn.Module):
    """Attention to earlier places, then a perceptron, each beside the identity."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self._heads = shape.heads
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        rows, context, width = x.shape
        parts = self.attention(self.before(x)).view(rows, context, 3, self._heads, -1)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.joined(seen.transpose(1, 2).reshape(rows, context, width))
        return x + self.perceptron(self.behind(x))


class GPT(nn.Module):
    """A decoder whose output layer shares the weights of the words."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.words, shape.width)
        self.places = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.blocks))
        self.norm = nn.LayerNorm(shape.width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return nn.functional.linear(self.norm(x), self.words.weight)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the loss of a batch, computed in bf16."""
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
        logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
