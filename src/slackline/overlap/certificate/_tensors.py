"""Hashes of single tensors, recorded so that two runs can be compared step by step."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import xxhash
from torch import Tensor, nn

from slackline.overlap.certificate._state import HashedState, content
from slackline.records import HashedTensors, TensorHashes, Written

__all__ = ["TensorRecorder"]

_MISSING = "-" * 16


class Reduced(Protocol):
    """Gradients that are being reduced."""

    def wait_reduced(self) -> None:
        """Block until the gradients of the step are reduced."""


class TensorRecorder:
    """The recorder of the hashes of gradients, their sums and the state, in some steps.

    It waits for each step's sums, so that nothing overlaps in these steps.
    """

    def __init__(
        self, module: nn.Module, rank: int, write: Callable[[Written], None], steps: range
    ) -> None:
        """Place hooks on the parameters, before others do: they see a gradient before its sum."""
        self._parameters = [
            (name, each) for name, each in module.named_parameters() if each.requires_grad
        ]
        self._rank = rank
        self._write = write
        self._steps = steps
        self._part: tuple[int, int] | None = None
        self._hashes: dict[int, str] = {}
        self._names: tuple[str, ...] | None = None
        tensors: list[Any] = [each for _, each in self._parameters]  # torch types the method not
        self._handles = [
            each.register_post_accumulate_grad_hook(self._hook(number))
            for number, each in enumerate(tensors)
        ]

    def records(self, step: int) -> bool:
        """Return whether hashes of this step are recorded."""
        return step in self._steps

    def part_began(self, step: int, virtual_rank: int) -> None:
        """Begin to record the gradients of a virtual rank."""
        self._hashes.clear()
        self._part = (step, virtual_rank) if step in self._steps else None

    def part_ended(self) -> None:
        """Write the hashes of the gradients of the virtual rank."""
        if self._part is None:
            return
        step, virtual_rank = self._part
        self._part = None
        numbers = range(len(self._parameters))
        hashes = [self._hashes.get(number, _MISSING) for number in numbers]
        self._tell(step, "gradients", hashes, virtual_rank, tuple(self._hashes))

    def sums(self, step: int, gradients: Sequence[Reduced]) -> None:
        """Wait for the sums of the gradients of a step, and write their hashes."""
        if step not in self._steps:
            return
        for each in gradients:
            each.wait_reduced()
        grads = [parameter.grad for _, parameter in self._parameters]
        hashes = [_MISSING if grad is None else _hash(grad) for grad in grads]
        self._tell(step, "sums", hashes)

    def state(self, step: int, state: HashedState) -> None:
        """Write the hashes of the state after a step; no update may be pending."""
        if step not in self._steps:
            return
        names, tensors = zip(*state.named_tensors(), strict=True)
        if names != self._names:
            self._names = names
            parameters = tuple(name for name, _ in self._parameters)
            self._write(
                HashedTensors(
                    rank=self._rank, time_ns=time.time_ns(), parameters=parameters, state=names
                )
            )
        self._tell(step, "state", [_hash(tensor) for tensor in tensors])

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, number: int) -> Callable[[Tensor], None]:
        def arrived(parameter: Tensor) -> None:
            if self._part is not None and parameter.grad is not None:
                self._hashes[number] = _hash(parameter.grad)

        return arrived

    def _tell(
        self,
        step: int,
        what: str,
        hashes: Sequence[str],
        virtual_rank: int = -1,
        order: tuple[int, ...] = (),
    ) -> None:
        self._write(
            TensorHashes(
                rank=self._rank,
                time_ns=time.time_ns(),
                step=step,
                what=what,
                virtual_rank=virtual_rank,
                hashes="".join(hashes),
                order=order,
            )
        )


def _hash(tensor: Tensor) -> str:
    return xxhash.xxh3_64_hexdigest(content(tensor.detach()))
