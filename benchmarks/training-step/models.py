"""The models: networks that compute, their data, and the parts that FSDP2 shards one by one.

Everything is made from fixed seeds, the same at every rank and for every contestant. A batch is
split evenly over the ranks, so the computation of all ranks together does not depend on their
number.

The examples are imported inside functions, because importing them and their libraries takes
seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from cases import DIGITS, GPT, LAYERS, TENSORS
from torch import Tensor, nn
from torch.nn import functional

SEED = 0
BATCHES = 8
"""The number of different batches, which are used in turn."""

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A network and the way that it is trained."""

    build: Callable[[], nn.Module]
    """Make the network with the weights that all ranks start from."""
    batches: Callable[[int, int], list[Batch]]
    """Return the batches of a rank, given its number and the number of ranks: inputs, targets."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """Return the loss of outputs and targets."""
    shard: type[nn.Module]
    """The type of modules that FSDP2 shards one by one.

    The rest of the network is sharded as one unit.
    """
    learning_rate: float = 1e-4


DIGITS_BATCH = 128
"""The number of images in a batch over all ranks, as in the example."""


def digits() -> Model:
    """Return the residual network of examples/train_digits.py: 24 tensors, 0.6 MB."""
    from train_digits import Block, Digits, resnet

    return Model(
        build=lambda: resnet(SEED),
        batches=lambda rank, ranks: Digits(DIGITS_BATCH, SEED).epoch(0, rank, ranks)[:BATCHES],
        loss=functional.cross_entropy,
        shard=Block,
        learning_rate=2e-3,
    )


GPT_BLOCKS, GPT_WIDTH, GPT_HEADS = 6, 256, 4
GPT_BATCH, GPT_LENGTH = 4, 32
"""The texts in a batch over all ranks, and the tokens in each."""


def gpt() -> Model:
    """Return a GPT made of the blocks of examples/pipeline_gpt.py: 78 tensors, 19 MB."""
    from pipeline_gpt import VOCABULARY, Block, Embedding

    def build() -> nn.Module:
        torch.manual_seed(SEED)
        return nn.Sequential(
            Embedding(GPT_WIDTH, GPT_LENGTH),
            *(Block(GPT_WIDTH, GPT_HEADS) for _ in range(GPT_BLOCKS)),
            nn.LayerNorm(GPT_WIDTH),
            nn.Flatten(0, 1),  # The loss takes one row for each token.
            nn.Linear(GPT_WIDTH, VOCABULARY),
        )

    def batches(rank: int, ranks: int) -> list[Batch]:
        generator = torch.Generator().manual_seed(SEED)
        text = torch.randint(VOCABULARY, (BATCHES, GPT_BATCH, GPT_LENGTH + 1), generator=generator)
        share = text.chunk(ranks, dim=1)[rank]
        return [(pieces[:, :-1], pieces[:, 1:].flatten()) for pieces in share]

    return Model(build=build, batches=batches, loss=functional.cross_entropy, shard=Block)


LAYERS_COUNT, LAYERS_WIDTH, LAYERS_BATCH = 24, 724, 16
"""The number, width and batch of the layers; 724 x 724 weights of float32 are 2 MB."""


def layers() -> Model:
    """Return a perceptron of 24 equal layers: 48 tensors, 48 MB."""

    def build() -> nn.Module:
        torch.manual_seed(SEED)
        parts: list[nn.Module] = []
        for _ in range(LAYERS_COUNT):
            layer = nn.Linear(LAYERS_WIDTH, LAYERS_WIDTH)
            # This initialization preserves the size of activations and gradients from layer to
            # layer.
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            parts += [layer, nn.ReLU()]
        return nn.Sequential(*parts)

    return Model(
        build=build,
        batches=lambda rank, ranks: _normal_batches(LAYERS_BATCH, LAYERS_WIDTH, rank, ranks),
        loss=functional.mse_loss,
        shard=nn.Linear,
    )


TENSORS_STAGES, TENSORS_PAIRS, TENSORS_WIDTH, TENSORS_BATCH = 20, 25, 64, 16
"""The shape of the network `tensors`: 20 stages of 25 pairs are 1,000 tensors."""
NARROWEST, WIDEST = 4, 256
"""The limits of a pair's inner dimension, for which a tensor has 1 to 64 KiB."""
RESIDUAL_SCALE = 0.1
"""The scale of a pair's second matrix.

With it 500 pairs in a row preserve the size of activations and gradients.
"""


class Pair(nn.Module):
    """Two matrices with a shortcut around them."""

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
    """A sequence of pairs that FSDP2 shards together."""


def tensors() -> Model:
    """Return a network of many small matrices: 1,000 tensors, 15 MB."""

    def build() -> nn.Module:
        torch.manual_seed(SEED)
        count = TENSORS_STAGES * TENSORS_PAIRS
        # The sizes are spread evenly on a logarithmic scale, in an order drawn at random.
        places = torch.randperm(count).div(count - 1)
        inner = (NARROWEST * (WIDEST / NARROWEST) ** places).round().long().tolist()
        pairs = [Pair(width) for width in inner]
        starts = range(0, count, TENSORS_PAIRS)
        return nn.Sequential(*(Stage(*pairs[start : start + TENSORS_PAIRS]) for start in starts))

    return Model(
        build=build,
        batches=lambda rank, ranks: _normal_batches(TENSORS_BATCH, TENSORS_WIDTH, rank, ranks),
        loss=functional.mse_loss,
        shard=Stage,
    )


def _normal_batches(batch: int, width: int, rank: int, ranks: int) -> list[Batch]:
    """Return inputs and targets drawn from the normal distribution."""
    generator = torch.Generator().manual_seed(SEED)
    drawn = torch.randn(2, BATCHES, batch, width, generator=generator).chunk(ranks, dim=2)[rank]
    return list(zip(*drawn, strict=True))


MODELS: Mapping[str, Callable[[], Model]] = {
    DIGITS: digits,
    GPT: gpt,
    LAYERS: layers,
    TENSORS: tensors,
}
