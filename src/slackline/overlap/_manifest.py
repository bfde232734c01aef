"""The description of a model that all ranks compare before they train together."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from torch import nn

__all__ = ["Entry", "decode", "difference", "encode", "manifest"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The description of one parameter or buffer, which must be equal on all ranks."""

    kind: str
    """ "parameter" or "buffer"."""
    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    role: str
    """The optimizer of a parameter: "optimizer 0", "frozen" or "held by no optimizer"."""

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "scalar"
        role = f", {self.role}" if self.role else ""
        return f"{self.kind} {self.name!r} ({self.dtype} {shape}, strides {self.stride}{role})"


def manifest(module: nn.Module, holders: Mapping[int, int]) -> tuple[Entry, ...]:
    """Describe the module's parameters, then its buffers, in the module's own order.

    `holders` maps a parameter's id to the number of the optimizer that holds it.
    """
    entries = []
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        role = ""
        if is_parameter := isinstance(tensor, nn.Parameter):
            holder = holders.get(id(tensor))
            role = "held by no optimizer" if holder is None else f"optimizer {holder}"
            role = role if tensor.requires_grad else "frozen"
        entries.append(
            Entry(
                kind="parameter" if is_parameter else "buffer",
                name=name,
                shape=tuple(tensor.shape),
                stride=tuple(tensor.stride()),
                dtype=str(tensor.dtype).removeprefix("torch."),
                role=role,
            )
        )
    return tuple(entries)


def encode(entries: Sequence[Entry], communicate: str = "None") -> bytes:
    """Return a model's description as JSON bytes, which `decode` reads.

    `communicate` is the wrapper's option of this name as text.
    """
    table = [asdict(entry) for entry in entries]
    return json.dumps([communicate, table], separators=(",", ":")).encode()


def decode(text: bytes) -> tuple[tuple[Entry, ...], str]:
    """Return the model's description and the option `communicate` that `encode` has written."""
    communicate, table = json.loads(text)
    entries = tuple(
        Entry(**{**given, "shape": tuple(given["shape"]), "stride": tuple(given["stride"])})
        for given in table
    )
    return entries, communicate


def difference(manifests: Sequence[Sequence[Entry]]) -> tuple[int, str] | None:
    """Return the first rank whose model differs from rank 0's, and the difference as a sentence.

    The result is None if all manifests are equal. Every rank gets the same result.
    """
    first = manifests[0]
    for rank, other in enumerate(manifests):
        for mine, theirs in zip(first, other, strict=False):
            if mine != theirs:
                return rank, f"rank {rank} has {theirs} where rank 0 has {mine}"
        if len(first) < len(other):
            return rank, f"rank {rank} has {other[len(first)]} and rank 0 has no such thing"
        if len(first) > len(other):
            return rank, f"rank {rank} lacks {first[len(other)]} of rank 0"
    return None
