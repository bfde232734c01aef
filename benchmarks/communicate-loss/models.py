"""The networks that are trained, and their data; a batch is split evenly over the ranks.

The examples are imported inside functions, because importing them and their libraries takes
seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from cases import DIGITS, GPT
from torch import Tensor, nn
from torch.nn import functional

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A network, its data and its learning rate."""

    net: nn.Module
    batch: Callable[[int, int, int], Batch]
    """Return a rank's share of a step's batch: (step, rank, ranks) -> inputs, targets."""
    held_out: Batch
    """Inputs and targets that no step uses."""
    learning_rate: float


DIGITS_BATCH = 128


def digits(seed: int) -> Model:
    """Return the residual network of examples/train_digits.py: 24 tensors, 0.6 MB."""
    from train_digits import Digits, resnet

    data = Digits(DIGITS_BATCH, seed)
    epochs: dict[int, list[Batch]] = {}

    def batch(step: int, rank: int, ranks: int) -> Batch:
        epoch, place = divmod(step, data.steps)
        if epoch not in epochs:
            epochs.clear()
            epochs[epoch] = data.epoch(epoch, rank, ranks)
        return epochs[epoch][place]

    held_out = data.test_x, data.test_y
    return Model(net=resnet(seed), batch=batch, held_out=held_out, learning_rate=2e-3)


GPT_BLOCKS, GPT_WIDTH, GPT_HEADS = 6, 256, 4
GPT_BATCH, GPT_LENGTH = 8, 32
"""The pieces of text in a batch over all ranks, and the bytes in each."""
KEPT_PIECES = 32
"""The pieces at the end of the text that are held out."""


def gpt(seed: int) -> Model:
    """Return a GPT of the blocks of examples/pipeline_gpt.py on argparse's text: 78 tensors,
    19 MB.
    """
    from pipeline_gpt import VOCABULARY, Block, Embedding

    torch.manual_seed(seed)
    net = nn.Sequential(
        Embedding(GPT_WIDTH, GPT_LENGTH),
        *(Block(GPT_WIDTH, GPT_HEADS) for _ in range(GPT_BLOCKS)),
        nn.LayerNorm(GPT_WIDTH),
        nn.Flatten(0, 1),  # The loss takes one row for each byte.
        nn.Linear(GPT_WIDTH, VOCABULARY),
    )
    text = torch.tensor(list(Path(argparse.__file__).read_bytes()))
    kept = KEPT_PIECES * (GPT_LENGTH + 1)
    text, last = text[:-kept], text[-kept:].view(KEPT_PIECES, -1)

    def batch(step: int, rank: int, ranks: int) -> Batch:
        generator = torch.Generator().manual_seed(seed * 1_000_000 + step)
        starts = torch.randint(len(text) - GPT_LENGTH - 1, (GPT_BATCH,), generator=generator)
        mine = starts.chunk(ranks)[rank].tolist()
        pieces = torch.stack([text[start : start + GPT_LENGTH + 1] for start in mine])
        return pieces[:, :-1], pieces[:, 1:].flatten()

    held_out = last[:, :-1], last[:, 1:].flatten()
    return Model(net=net, batch=batch, held_out=held_out, learning_rate=1e-3)


MODELS: Mapping[str, Callable[[int], Model]] = {DIGITS: digits, GPT: gpt}


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy in nats."""
    return functional.cross_entropy(outputs, targets)
