"""The models: networks that compute, their data, and the parts that FSDP2 shards one by one.

Everything is made from fixed seeds, the same at every rank and for every contestant. A batch is
dealt out evenly over the ranks, so that the computation of all ranks together does not depend on
their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from cases import DIGITS, GPT, LAYERS, TENSORS
from pipeline_gpt import VOCABULARY, Embedding
from pipeline_gpt import Block as TransformerBlock
from torch import Tensor, nn
from torch.nn import functional
from train_digits import Block as ResidualBlock
from train_digits import Digits, resnet

SEED = 0
BATCHES = 8
"""Different batches, used in a circle."""

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A network in training."""

    build: Callable[[], nn.Module]
    """The network with the weights that all ranks start from."""
    batches: Callable[[int, int], list[Batch]]
    """The batches of a rank, given its number and the number of ranks: inputs and targets."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """Of outputs and targets."""
    shard: type[nn.Module]
    """FSDP2 shards each module of this type by itself, and the rest of the network as one."""
    learning_rate: float = 1e-4


DIGITS_BATCH = 128
"""As in the example."""


def _digits() -> nn.Module:
    return resnet(SEED)


def _digits_batches(rank: int, ranks: int) -> list[Batch]:
    return Digits(DIGITS_BATCH, SEED).epoch(0, rank, ranks)[:BATCHES]


GPT_BLOCKS, GPT_WIDTH, GPT_HEADS = 6, 256, 4
GPT_BATCH, GPT_LENGTH = 4, 32
"""Pieces of text over all ranks, and the tokens in each."""


def _gpt() -> nn.Module:
    torch.manual_seed(SEED)
    blocks = [TransformerBlock(GPT_WIDTH, GPT_HEADS) for _ in range(GPT_BLOCKS)]
    # One row for each token of all pieces, as the loss takes them.
    head = [nn.LayerNorm(GPT_WIDTH), nn.Flatten(0, 1), nn.Linear(GPT_WIDTH, VOCABULARY)]
    return nn.Sequential(Embedding(GPT_WIDTH, GPT_LENGTH), *blocks, *head)


def _gpt_batches(rank: int, ranks: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(SEED)
    text = torch.randint(VOCABULARY, (BATCHES, GPT_BATCH, GPT_LENGTH + 1), generator=generator)
    shares = text.chunk(ranks, dim=1)[rank]
    return [(pieces[:, :-1], pieces[:, 1:].flatten()) for pieces in shares]


LAYERS_COUNT, LAYERS_WIDTH, LAYERS_BATCH = 24, 724, 16
"""724 x 724 weights of float32 are 2 MB."""


def _layers() -> nn.Module:
    torch.manual_seed(SEED)
    parts: list[nn.Module] = []
    for _ in range(LAYERS_COUNT):
        layer = nn.Linear(LAYERS_WIDTH, LAYERS_WIDTH)
        # Keeps the size of activations and gradients from layer to layer.
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        parts += [layer, nn.ReLU()]
    return nn.Sequential(*parts)


def _layers_batches(rank: int, ranks: int) -> list[Batch]:
    return _normal_batches(LAYERS_BATCH, LAYERS_WIDTH, rank, ranks)


TENSORS_STAGES, TENSORS_PAIRS, TENSORS_WIDTH, TENSORS_BATCH = 20, 25, 64, 16
"""20 stages of 25 pairs: 1,000 tensors."""
NARROWEST, WIDEST = 4, 256
"""Of the inner dimension of a pair, so that a tensor has 1 to 64 KiB."""
RESIDUAL_SCALE = 0.1
"""Of the second matrix: 500 pairs in a row leave the size of activations and gradients as it is."""


class Pair(nn.Module):
    """Two matrices beside a shortcut."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(TENSORS_WIDTH, inner, bias=False)
        self.down = nn.Linear(inner, TENSORS_WIDTH, bias=False)
        with torch.no_grad():
            self.down.weight.mul_(RESIDUAL_SCALE)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(functional.relu(self.up(x)))
        return x + y


class Stage(nn.Sequential):
    """Pairs that FSDP2 shards together."""


def _tensors() -> nn.Module:
    torch.manual_seed(SEED)
    count = TENSORS_STAGES * TENSORS_PAIRS
    # Sizes that are evenly spread on a logarithmic scale, in an order drawn at random.
    places = torch.randperm(count).div(count - 1)
    inner = (NARROWEST * (WIDEST / NARROWEST) ** places).round().long().tolist()
    pairs = [Pair(width) for width in inner]
    return nn.Sequential(
        *(Stage(*pairs[start : start + TENSORS_PAIRS]) for start in range(0, count, TENSORS_PAIRS))
    )


def _tensors_batches(rank: int, ranks: int) -> list[Batch]:
    return _normal_batches(TENSORS_BATCH, TENSORS_WIDTH, rank, ranks)


def _normal_batches(batch: int, width: int, rank: int, ranks: int) -> list[Batch]:
    """Inputs and targets drawn from the normal distribution."""
    generator = torch.Generator().manual_seed(SEED)
    drawn = torch.randn(2, BATCHES, batch, width, generator=generator).chunk(ranks, dim=2)[rank]
    return list(zip(*drawn, strict=True))


MODELS: Mapping[str, Model] = {
    DIGITS: Model(
        build=_digits,
        batches=_digits_batches,
        loss=functional.cross_entropy,
        shard=ResidualBlock,
        learning_rate=2e-3,
    ),
    GPT: Model(
        build=_gpt, batches=_gpt_batches, loss=functional.cross_entropy, shard=TransformerBlock
    ),
    LAYERS: Model(
        build=_layers, batches=_layers_batches, loss=functional.mse_loss, shard=nn.Linear
    ),
    TENSORS: Model(build=_tensors, batches=_tensors_batches, loss=functional.mse_loss, shard=Stage),
}
