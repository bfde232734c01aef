"""The stages of a drawn model as modules: their parts, and the tensors that pass between them."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor, nn

from model_cases.cases import Case, Part
from model_cases.parts import LENGTH, PARTS, VOCABULARY, WIDTH, Note, seeded
from model_cases.wraps import WRAPS

__all__ = ["STREAMS", "DrawnStage", "build", "make_part"]


def _tokens(h: Tensor) -> Tensor:
    return (h.detach().mean(-1) * 16).long().remainder(VOCABULARY)


def _paired(h: Tensor) -> Tensor:
    return torch.view_as_complex(h.reshape(len(h), LENGTH, WIDTH // 2, 2).contiguous())


STREAMS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "hidden": lambda h: h,
        "detached": lambda h: h.detach(),
        "turned": lambda h: h.transpose(1, 2),
        "double": lambda h: h.double(),
        "half": lambda h: h.bfloat16(),
        "complex": _paired,
        "tokens": _tokens,
        "mask": lambda h: h.detach().mean(-1) > 0,
        "again": lambda h: h,
        "scaled": lambda h: h * 0.5,
        "single": lambda h: h.mean(),
        "unused": lambda h: h.sum(-1),
        "numbers": lambda h: torch.arange(len(h), dtype=torch.int32),
    }
)
"""The tensors that a stage may send, made from its hidden tensor; the first one sent is the base.

A base is one of "hidden", "detached", "turned", "double", "half", "complex" and "tokens".
"""


class DrawnStage(nn.Module):
    """A stage: it takes the tensors of the stage before, runs its parts and sends tensors on."""

    def __init__(self, case: Case, index: int) -> None:
        super().__init__()
        drawn = case.stages[index]
        self.index, self.drawn = index, drawn
        self.takes = case.stages[index - 1].sends if index else ("hidden",)
        self.output = case.output if index == len(case.stages) - 1 else ""
        self.table = nn.Embedding(VOCABULARY, WIDTH) if "tokens" in self.takes else None
        self.own = nn.Parameter(torch.randn(LENGTH, WIDTH)) if drawn.ignores else None
        self.parts = nn.ModuleList(map(make_part, drawn.parts))
        if drawn.frozen:
            self.requires_grad_(False)
        # Every backward of a wrapped model reaches this parameter, whatever else the gates leave.
        self.gain = nn.Parameter(torch.ones(())) if case.wrapped and self.output else None

    def forward(
        self, *given: Tensor, number: Tensor, scale: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """Run the stage; `number` holds the microbatch's number in each row."""
        note = Note(self.index, int(number[0]))
        h = self._taken(dict(zip(self.takes, given, strict=True)))
        if self.own is not None:
            h = self.own.expand(len(h), LENGTH, WIDTH) * 1
        if scale is not None:
            h = h * scale
        if self._runs(h, note):
            for part in self.parts:
                h = part(h, note)
        if self.output:
            h = h.float() if self.gain is None else h.float() * self.gain
            return h if self.output == "tensor" else (h, h.sum(-1))
        sent = tuple(STREAMS[name](h) for name in self.drawn.sends)
        return sent if len(sent) > 1 else sent[0]

    def _runs(self, h: Tensor, note: Note) -> bool:
        if self.drawn.gate == "number":
            return note.microbatch % 2 == 1
        return self.drawn.gate != "data" or bool(h.detach()[0, 0, 0] > 0)

    def _taken(self, given: Mapping[str, Tensor]) -> Tensor:
        """Return the hidden tensor that follows from the tensors of the stage before."""
        base, *_ = given
        h = given[base]
        if base == "tokens":
            assert self.table is not None
            h = self.table(h)
        elif base == "turned":
            h = h.transpose(1, 2)
        elif base == "complex":
            h = torch.view_as_real(h).flatten(2)
        elif base in ("double", "half"):
            h = h.float()
        for name, value in list(given.items())[1:]:
            if name == "mask":
                h = h * value.unsqueeze(-1)
            elif name == "tokens":
                assert self.table is not None
                h = h + self.table(value)
            elif name == "complex":
                h = h + torch.view_as_real(value).flatten(2)
            elif name == "numbers":
                h = h + value[:, None, None] * 0.1
            elif name in ("again", "scaled", "single"):
                h = h + value * 0.5
        return h


def make_part(part: Part) -> nn.Module:
    """Return a new module of the part; its values follow torch's generator."""
    made = PARTS[part.kind]()
    for name in part.wraps:
        made = WRAPS[name](made)
    return made


def build(case: Case, only: Sequence[int] | None = None) -> dict[int, nn.Module]:
    """Return the modules of a case's stages by index; every call returns equal modules.

    `only` names the stages to build; None builds all.
    """
    made = {}
    for index in range(len(case.stages)) if only is None else only:
        seeded(case.seed, index)
        made[index] = DrawnStage(case, index)
    return made
