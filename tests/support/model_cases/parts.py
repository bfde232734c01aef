"""The kinds of parts that drawn models have. Each part keeps the shape of the hidden tensor.

The hidden tensor has the shape (rows, LENGTH, WIDTH). A part is called with the hidden tensor and a
`Note`, whose microbatch number seeds random parts: any order of the microbatches gives the same
values.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

__all__ = ["LENGTH", "PARTS", "VOCABULARY", "WIDTH", "Adapter", "Note", "seeded"]

LENGTH = 3
WIDTH = 8
VOCABULARY = 16


@dataclass(frozen=True, slots=True)
class Note:
    """The place of a computation in a step: the stage, and the number of the microbatch."""

    stage: int
    microbatch: int


def seeded(*numbers: int) -> None:
    """Seed torch's generator with small numbers, such as those of a stage and a microbatch."""
    seed = 1
    for number in numbers:
        seed = (seed * 1009 + number + 1) % (1 << 40)
    torch.default_generator.manual_seed(seed)


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor, note: Note) -> Tensor:
        return h + torch.tanh(self.layer(h))


class InPlace(Linear):
    def forward(self, h: Tensor, note: Note) -> Tensor:
        return functional.relu_(self.layer(h).add_(0.1))


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, h: Tensor, note: Note) -> Tensor:
        return h + self.layer(h.transpose(1, 2)).transpose(1, 2).sigmoid()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, h: Tensor, note: Note) -> Tensor:
        return h + self.layer(h, h, h, need_weights=False)[0]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, h: Tensor, note: Note) -> Tensor:
        found: Tensor = self.layer(h)[0]
        return found


class Positions(nn.Module):
    """An embedding of integers that follow from the microbatch's number."""

    sparse = False

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH, sparse=self.sparse)

    def forward(self, h: Tensor, note: Note) -> Tensor:
        places = (torch.arange(LENGTH) * (note.microbatch + 1)) % VOCABULARY
        return h + self.table(places.expand(len(h), LENGTH))


class SparsePositions(Positions):
    sparse = True


class LayerNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LayerNorm(WIDTH)

    def forward(self, h: Tensor, note: Note) -> Tensor:
        found: Tensor = self.layer(h)
        return found


class BatchNorm(nn.Module):
    """A norm with buffers, which every forward in training mode changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.BatchNorm1d(WIDTH)

    def forward(self, h: Tensor, note: Note) -> Tensor:
        found: Tensor = self.layer(h.transpose(1, 2)).transpose(1, 2)
        return found


class Dropout(nn.Module):
    def forward(self, h: Tensor, note: Note) -> Tensor:
        seeded(note.stage, note.microbatch)
        return functional.dropout(h, 0.3, self.training)


class Tied(nn.Module):
    """Two layers that share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.second.weight = self.first.weight

    def forward(self, h: Tensor, note: Note) -> Tensor:
        return h + self.second(torch.tanh(self.first(h)))


class Repeated(nn.Module):
    """A layer that is used twice, with another layer between."""

    def __init__(self) -> None:
        super().__init__()
        self.outer, self.inner = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor, note: Note) -> Tensor:
        return h + self.outer(torch.tanh(self.inner(torch.tanh(self.outer(h)))))


class Looped(nn.Module):
    """A layer that is used once, twice or three times, as the microbatch's number says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor, note: Note) -> Tensor:
        for _ in range(1 + note.microbatch % 3):
            h = torch.tanh(self.layer(h))
        return h


class Nested(nn.Module):
    """Modules within modules, with a parameter of their own beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.body = nn.Sequential(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU()), nn.Linear(2 * WIDTH, WIDTH)
        )
        self.gain = nn.Parameter(torch.tensor(0.5))

    def forward(self, h: Tensor, note: Note) -> Tensor:
        return h + self.gain * self.body(self.norm(h))


class Experts(nn.Module):
    """A mixture of experts: each row takes one expert, and some experts get no row at all."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, h: Tensor, note: Note) -> Tensor:
        shares = self.router(h.mean(1)).softmax(-1)
        chosen = shares.argmax(-1)
        found = h
        for place, expert in enumerate(self.experts):
            rows = (chosen == place).nonzero().flatten()
            if len(rows):
                value = expert(h[rows]) * shares[rows, place, None, None]
                found = found.index_add(0, rows, value.to(found.dtype))
        return found


class _Product(torch.autograd.Function):
    """A matrix product with a backward of its own, for the input and for the weight."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, h: Tensor, weight: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(h, weight)
        return h @ weight

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, Tensor]:  # type: ignore
        h, weight = ctx.saved_tensors
        needed = ctx.needs_input_grad[0]
        of_weight = h.flatten(0, 1).t() @ gradient.flatten(0, 1)
        return gradient @ weight.t() if needed else None, of_weight


class Custom(nn.Module):
    """A custom autograd.Function that has a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)

    def forward(self, h: Tensor, note: Note) -> Tensor:
        found: Tensor = _Product.apply(h, self.weight)
        return h + found


class WeightNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, h: Tensor, note: Note) -> Tensor:
        return h + torch.tanh(self.layer(h))


class Computed(nn.Module):
    """Two layers with one weight, which is itself computed from two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.randn(WIDTH, 2))
        self.right = nn.Parameter(torch.randn(2, WIDTH))

    def forward(self, h: Tensor, note: Note) -> Tensor:
        weight = self.left @ self.right / 4
        return functional.linear(torch.tanh(functional.linear(h, weight)), weight)


class Adapter(nn.Module):
    """A frozen layer, beside which an adapter of two small layers can be added."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.adapter: nn.Module | None = None

    def add(self) -> None:
        """Add the adapter, or replace it by a new one."""
        self.adapter = nn.Sequential(nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH))

    def forward(self, h: Tensor, note: Note) -> Tensor:
        found: Tensor = self.layer(h)
        return found if self.adapter is None else found + self.adapter(h)


class Complex(nn.Module):
    """A complex weight, as in layers that work on frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH // 2, dtype=torch.complex64))

    def forward(self, h: Tensor, note: Note) -> Tensor:
        paired = torch.view_as_complex(h.reshape(len(h), LENGTH, WIDTH // 2, 2).contiguous())
        return torch.view_as_real(paired * self.weight).flatten(2)


class Double(nn.Module):
    """A layer that computes in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, h: Tensor, note: Note) -> Tensor:
        return torch.tanh(self.layer(h.double())).float()


class Halves(nn.Module):
    """Layers on views: each works on a half of the hidden tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Linear(WIDTH // 2, WIDTH // 2) for _ in range(2))

    def forward(self, h: Tensor, note: Note) -> Tensor:
        left, right = h.chunk(2, dim=-1)
        return torch.cat([self.left(right), torch.tanh(self.right(left))], dim=-1)


class Unused(Linear):
    """A layer beside a parameter that no forward uses."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(2))


class Activation(nn.Module):
    """A part without parameters."""

    def forward(self, h: Tensor, note: Note) -> Tensor:
        return functional.gelu(h)


class TensorHook(Linear):
    """A layer whose output has a hook that changes the gradient."""

    def forward(self, h: Tensor, note: Note) -> Tensor:
        found = super().forward(h, note)
        if found.requires_grad:
            found.register_hook(_halved)
        return found


def _halved(gradient: Tensor | None) -> Tensor | None:
    """Return half the gradient; a reentrant checkpoint may give a hook None."""
    return None if gradient is None else gradient * 0.5


class ModuleHook(Linear):
    """A layer with torch's full backward hooks, of which one changes the gradient of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer.register_full_backward_pre_hook(lambda module, gradients: None)
        self.layer.register_full_backward_hook(_halve)


def _halve(module: nn.Module, inputs: tuple[Tensor, ...], outputs: object) -> tuple[Tensor, ...]:
    return tuple(map(_halved, inputs))  # type: ignore[arg-type]


class WeightHook(Linear):
    """A layer whose weight has a hook that changes the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer.weight.register_hook(_halved)


class AfterHook(Linear):
    """A layer whose bias has a hook that runs after each addition to the gradient.

    The number of its calls is compared too, because it is a buffer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.layer.bias.register_post_accumulate_grad_hook(self._count)

    def _count(self, bias: Tensor) -> None:
        self.calls.add_(1)


PARTS: Mapping[str, Callable[[], nn.Module]] = MappingProxyType(
    {
        "linear": Linear,
        "in-place": InPlace,
        "convolution": Convolution,
        "attention": Attention,
        "recurrent": Recurrent,
        "positions": Positions,
        "sparse-positions": SparsePositions,
        "layer-norm": LayerNorm,
        "batch-norm": BatchNorm,
        "dropout": Dropout,
        "tied": Tied,
        "repeated": Repeated,
        "looped": Looped,
        "nested": Nested,
        "experts": Experts,
        "custom": Custom,
        "weight-norm": WeightNorm,
        "computed": Computed,
        "adapter": Adapter,
        "complex": Complex,
        "double": Double,
        "halves": Halves,
        "unused": Unused,
        "activation": Activation,
        "tensor-hook": TensorHook,
        "module-hook": ModuleHook,
        "weight-hook": WeightHook,
        "after-hook": AfterHook,
    }
)
"""The classes of parts by the names that cases use."""
