"""A small language model that programs split by tensor and sequence parallelism."""

import hashlib
from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

WORDS, WIDTH, LENGTH = 32, 16, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def split(model: Model, mesh: DeviceMesh) -> Model:
    """Split a model over the ranks of a mesh: its weights, and the sequence between them."""
    parallelize_module(
        model,
        mesh,
        {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    )
    for block in model.blocks:
        split_block(block, mesh)
    return model


def split_block(block: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Split a block, whose input and output are parts of the sequence."""
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    return parallelize_module(block, mesh, plan)


def sentences(generator: torch.Generator) -> torch.Tensor:
    return torch.randint(WORDS, (4, LENGTH), generator=generator)


def loss_of(scores: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Return the loss of scores for the next words."""
    return nn.functional.cross_entropy(scores[:, :-1].reshape(-1, WORDS), words[:, 1:].flatten())


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Return a hash of all bits of tensors, each of them whole."""
    found = hashlib.sha256()
    for tensor in tensors:
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        found.update(whole.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
