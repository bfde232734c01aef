"""A check that a backward pass runs in autograd's own engine, not in compiled autograd.

Compiled autograd records a backward pass, compiles it and runs the result later. The hooks that
start the reductions would be compiled too, and a graph that was compiled once would post the
reductions of another step.
"""

from typing import Any

import torch

from slackline.errors import UsageError

__all__ = ["refuse_compiled_autograd"]


def refuse_compiled_autograd() -> None:
    """Raise UsageError if compiled autograd runs the present backward pass."""
    if torch._dynamo.compiled_autograd.in_compiled_autograd_region:
        _refuse()


def _raise() -> None:
    raise UsageError(
        "compiled autograd must be off for the backward of a model in "
        "slackline.overlap.DataParallel, whose hooks reduce gradients; compile the module alone"
    )


# Compiled autograd compiles hooks too. The exception must be raised outside of compiled code.
_refuse: Any = torch.compiler.disable(  # type: ignore[no-untyped-call]
    _raise, reason="slackline.overlap.DataParallel does not work with compiled autograd"
)
