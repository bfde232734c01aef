"""The models, the ways to train and the numbers of ranks that the benchmark compares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

HASHES, PRICE, CERTIFICATE, SAMPLES = "hashes", "price", "certificate", "samples"
PARTS = (HASHES, PRICE, CERTIFICATE, SAMPLES)

MODELS = ("cnn", "gpt", "vit")
"""A convolution with BatchNorm, a GPT with dropout and tied weights, and a vision transformer."""
PRECISIONS = ("fp32", "bf16")
OPTIMIZERS = ("sgd", "foreach", "fused")
"""SGD with momentum, and the two implementations of AdamW."""
VIRTUAL_RANKS = 8
TREE, ACCUMULATED, DDP = "tree", "accumulated", "ddp over gloo"
"""The sum in the tree; plain accumulation of the same parts, and one sum of the ranks; DDP, whose
ranks compute their part of the batch at once."""
HASHED, UNHASHED = "hashed", "unhashed"
"""The sum in the tree with telemetry: with a hash of the state after each step, and without."""


class Training(NamedTuple):
    """A way to train."""

    model: str
    precision: str
    optimizer: str


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """How much a run measures."""

    ranks: tuple[int, ...]
    """The numbers of ranks whose hashes are compared."""
    trainings: tuple[Training, ...]
    steps: int
    """The steps after which hashes are compared."""
    priced: tuple[int, ...]
    """The numbers of ranks whose steps are timed."""
    certified: tuple[int, ...]
    """The numbers of ranks whose steps are timed with and without hashes."""
    rounds: int
    """The rounds of timed steps, in which contestants take turns."""
    turn: int
    """The steps of a turn."""
    divided: tuple[int, ...]
    """The numbers of virtual ranks into which one rank divides its batch."""


FULL = Lengths(
    ranks=(1, 2, 3, 4, 5, 8),
    trainings=tuple(
        Training(model, precision, optimizer)
        for model in MODELS
        for precision in PRECISIONS
        for optimizer in OPTIMIZERS
    ),
    steps=100,
    priced=(1, 2, 3, 4, 8),
    certified=(1, 2, 8),
    rounds=15,
    turn=4,
    divided=(1, 2, 4, 8, 16, 32),
)
QUICK = Lengths(
    ranks=(1, 3),
    trainings=(Training("cnn", "fp32", "fused"), Training("gpt", "bf16", "foreach")),
    steps=4,
    priced=(2,),
    certified=(),
    rounds=3,
    turn=2,
    divided=(1, 8),
)
BATCH = {"cnn": 256, "gpt": 32, "vit": 64}
"""The samples of a step."""
PRICED = "gpt"
"""The model of the timed steps: it has the most parameters for a sample."""
MOST_PRICE = 1.05
MOST_CERTIFICATE = 1.01
"""The processor's time with hashes over that without."""
MOST_WIRE, MOST_UNEVEN_WIRE = 1.01, 1.34
"""The bytes over those of plain accumulation, where each rank has one node and where some have
several; 1 % is left for acknowledgements."""
