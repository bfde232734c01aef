"""The models: networks that compute, their data, and the parts that FSDP2 shards one by one.

Everything is made from fixed seeds, the same at every rank and for every contestant. A batch is
split evenly over the ranks, so the computation of all ranks together does not depend on their
number.

The examples are imported inside functions, because importing them and their libraries takes
seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from cases import CLIPPING, DIGITS, GPT, LAYERS, RESNET, TENSORS, TINY, VIT
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
    max_norm: float | None = None
    """The norm to which each step clips the gradients of all ranks; None clips nothing."""


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


MAX_NORM = 1.0
"""The norm to which gradients are clipped, the usual one for a GPT."""


def clipping() -> Model:
    """Return the GPT of `gpt`, which is trained with gradients that are clipped."""
    return replace(gpt(), max_norm=MAX_NORM)


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


PAIRS, PAIR_WIDTH, PAIR_BATCH = 25, 64, 16
"""The pairs of matrices in a stage, their outer dimension, and the batch over all ranks."""
TENSORS_STAGES, TINY_STAGES = 20, 8
"""The stages of the networks `tensors` and `tiny`: 20 stages of 25 pairs are 1,000 tensors."""
NARROWEST, TENSORS_WIDEST, TINY_WIDEST = 4, 256, 64
"""The limits of a pair's inner dimension: 4 for a tensor of 1 KiB, 256 for one of 64 KiB."""
RESIDUAL_SCALE = 0.1
"""The scale of a pair's second matrix.

With it 500 pairs in a row preserve the size of activations and gradients.
"""


class Pair(nn.Module):
    """Two matrices with a shortcut around them."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(PAIR_WIDTH, inner, bias=False)
        self.down = nn.Linear(inner, PAIR_WIDTH, bias=False)
        with torch.no_grad():
            self.down.weight.mul_(RESIDUAL_SCALE)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(functional.relu(self.up(x)))
        return x + y


class Stage(nn.Sequential):
    """A sequence of pairs that FSDP2 shards together."""


def tensors() -> Model:
    """Return a network of many small matrices: 1,000 tensors of 1 to 64 KiB, 15 MB."""
    return _pairs(TENSORS_STAGES, TENSORS_WIDEST)


def tiny() -> Model:
    """Return a network of many tiny matrices: 400 tensors of 1 to 16 KiB, 2.2 MB."""
    return _pairs(TINY_STAGES, TINY_WIDEST)


def _pairs(stages: int, widest: int) -> Model:
    """Return a network of pairs, whose inner dimensions are at most `widest`."""

    def build() -> nn.Module:
        torch.manual_seed(SEED)
        count = stages * PAIRS
        # The sizes are spread evenly on a logarithmic scale, in an order drawn at random.
        places = torch.randperm(count).div(count - 1)
        inner = (NARROWEST * (widest / NARROWEST) ** places).round().long().tolist()
        pairs = [Pair(width) for width in inner]
        starts = range(0, count, PAIRS)
        return nn.Sequential(*(Stage(*pairs[start : start + PAIRS]) for start in starts))

    return Model(
        build=build,
        batches=lambda rank, ranks: _normal_batches(PAIR_BATCH, PAIR_WIDTH, rank, ranks),
        loss=functional.mse_loss,
        shard=Stage,
    )


VIT_BLOCKS, VIT_WIDTH, VIT_HEADS, VIT_PATCH = 6, 192, 3, 4
"""The shape of a small vision transformer; a patch has 4 x 4 pixels."""
RESNET_WIDTHS = (32, 64, 128)
"""The channels of each of the residual blocks, of which all but the first halve the image."""
IMAGE_SIDE, COLOURS, CLASSES = 32, 3, 10
"""The shape of an image and the number of classes, those of CIFAR-10."""
VIT_BATCH, RESNET_BATCH = 4, 16
"""The images in a batch over all ranks."""


class Patches(nn.Module):
    """The vectors of an image's patches, with the positions of the patches added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        count = (IMAGE_SIDE // VIT_PATCH) ** 2
        self.project = nn.Conv2d(COLOURS, width, VIT_PATCH, stride=VIT_PATCH)
        self.positions = nn.Parameter(torch.randn(count, width) * 0.02)

    def forward(self, images: Tensor) -> Tensor:
        patches: Tensor = self.project(images).flatten(2).transpose(1, 2)
        return patches + self.positions


class MeanOfPatches(nn.Module):
    """The mean of an image's vectors."""

    def forward(self, vectors: Tensor) -> Tensor:
        return vectors.mean(dim=1)


def vit() -> Model:
    """Return a vision transformer of 6 layers of width 192: 79 tensors, 11 MB."""

    def build() -> nn.Module:
        torch.manual_seed(SEED)
        return nn.Sequential(
            Patches(VIT_WIDTH),
            *(
                nn.TransformerEncoderLayer(
                    VIT_WIDTH,
                    VIT_HEADS,
                    4 * VIT_WIDTH,
                    dropout=0.0,
                    activation=functional.gelu,
                    batch_first=True,
                    norm_first=True,
                )
                for _ in range(VIT_BLOCKS)
            ),
            nn.LayerNorm(VIT_WIDTH),
            MeanOfPatches(),
            nn.Linear(VIT_WIDTH, CLASSES),
        )

    return Model(
        build=build,
        batches=lambda rank, ranks: _image_batches(VIT_BATCH, rank, ranks),
        loss=functional.cross_entropy,
        shard=nn.TransformerEncoderLayer,
    )


class Residual(nn.Module):
    """Two convolutions with batch normalization, and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet() -> Model:
    """Return a residual network for colour images, with batch normalization: 29 tensors, 1.2 MB."""

    def build() -> nn.Module:
        torch.manual_seed(SEED)
        first, last = RESNET_WIDTHS[0], RESNET_WIDTHS[-1]
        widths = zip((first, *RESNET_WIDTHS), RESNET_WIDTHS, strict=False)
        return nn.Sequential(
            nn.Conv2d(COLOURS, first, 3, padding=1, bias=False),
            nn.BatchNorm2d(first),
            nn.ReLU(),
            *(Residual(inputs, outputs) for inputs, outputs in widths),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(last, CLASSES),
        )

    return Model(
        build=build,
        batches=lambda rank, ranks: _image_batches(RESNET_BATCH, rank, ranks),
        loss=functional.cross_entropy,
        shard=Residual,
    )


def _image_batches(batch: int, rank: int, ranks: int) -> list[Batch]:
    """Return images drawn from the normal distribution, and classes drawn at random."""
    generator = torch.Generator().manual_seed(SEED)
    shape = (BATCHES, batch, COLOURS, IMAGE_SIDE, IMAGE_SIDE)
    images = torch.randn(shape, generator=generator).chunk(ranks, dim=1)[rank]
    classes = torch.randint(CLASSES, (BATCHES, batch), generator=generator)
    return list(zip(images, classes.chunk(ranks, dim=1)[rank], strict=True))


def _normal_batches(batch: int, width: int, rank: int, ranks: int) -> list[Batch]:
    """Return inputs and targets drawn from the normal distribution."""
    generator = torch.Generator().manual_seed(SEED)
    drawn = torch.randn(2, BATCHES, batch, width, generator=generator).chunk(ranks, dim=2)[rank]
    return list(zip(*drawn, strict=True))


MODELS: Mapping[str, Callable[[], Model]] = {
    CLIPPING: clipping,
    DIGITS: digits,
    GPT: gpt,
    LAYERS: layers,
    RESNET: resnet,
    TENSORS: tensors,
    TINY: tiny,
    VIT: vit,
}
