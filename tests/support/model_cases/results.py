"""The tensors that a training step leaves behind, and the first difference between two results."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

__all__ = ["Result", "difference", "found_in"]

Result = dict[str, Tensor | None]
"""Tensors by their names, such as "gradient of 0.parts.1.layer.weight"; None: no gradient."""


def found_in(modules: Mapping[int, nn.Module]) -> Result:
    """Return copies of the gradients, values and buffers of stages."""
    found: Result = {}
    for index, module in modules.items():
        for name, each in module.named_parameters():
            gradient = each.grad
            found[f"gradient of {index}.{name}"] = None if gradient is None else gradient.clone()
            found[f"value of {index}.{name}"] = each.detach().clone()
        for name, buffer in module.named_buffers():
            found[f"buffer {index}.{name}"] = buffer.clone()
    return found


def difference(found: Sequence[Result], expected: Sequence[Result]) -> str:
    """Return a text about the first difference between results, or an empty text.

    Tensors must have equal bits. Names that only `expected` has are left out: a rank has some of
    the stages.
    """
    for place, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        for name, value in mine.items():
            if said := _differ(value, theirs[name]):
                return f"result {place}, {name}: {said}"
    return ""


def _differ(found: Tensor | None, expected: Tensor | None) -> str:
    if found is None or expected is None:
        return "" if found is expected else f"{_brief(found)}, not {_brief(expected)}"
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return f"{found.dtype} {list(found.shape)}, not {expected.dtype} {list(expected.shape)}"
    if torch.equal(_bits(found), _bits(expected)):
        return ""
    a, b = _plain(found), _plain(expected)
    far = (a - b).abs().max().item()
    return f"differs by up to {far:.3g}: {_brief(found)}, not {_brief(expected)}"


def _bits(tensor: Tensor) -> Tensor:
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    real = torch.view_as_real(dense) if dense.is_complex() else dense
    return real.contiguous().reshape(-1).view(torch.uint8)


def _plain(tensor: Tensor) -> Tensor:
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    return (torch.view_as_real(dense) if dense.is_complex() else dense).double()


def _brief(tensor: Tensor | None) -> str:
    if tensor is None:
        return "None"
    values = ", ".join(f"{each:.6g}" for each in _plain(tensor).flatten()[:4].tolist())
    return f"[{values}{', ...' if tensor.numel() > 4 else ''}]"
