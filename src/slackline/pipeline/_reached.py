"""The check that no gradient of a microbatch is lost on its way to a parameter."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from torch import Tensor, nn
from torch.autograd.graph import Node

from slackline.pipeline._backward import leaves_of

__all__ = ["Reached"]


class Reached:
    """The parameters that the graph of a microbatch reaches, and how often each was added to.

    A gradient that autograd leaves undefined counts as added.
    """

    def __init__(self, outputs: Sequence[Tensor], parameters: Mapping[str, nn.Parameter]) -> None:
        """Walk the graph of `outputs`; leaves that are not among `parameters` are left out."""
        nodes = {id(leaf): node for node, leaf in leaves_of(outputs).items()}
        self._names = {
            nodes[id(each)]: name for name, each in parameters.items() if id(each) in nodes
        }
        self._times = dict.fromkeys(self._names, 0)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the additions within the body."""
        handles = [node.register_hook(partial(self._count, node)) for node in self._names]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def missing(self) -> list[str]:
        """Return the names of the parameters that have not been added to exactly once."""
        return [self._names[node] for node, times in self._times.items() if times != 1]

    def _count(self, node: Node, *_: object) -> None:
        self._times[node] += 1
