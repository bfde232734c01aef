"""The backward of one microbatch, whole or divided: for the inputs (B), later for the weights (W).

A graph of autograd leads from the outputs of a stage to its leaves: the stage's inputs and the
weights. The nodes from which an input can be reached are the path. A branch is a node of the path
together with the weights that only this node reaches beside the path:

    loss ── gelu ── addmm ── layer_norm ── input        the path
                      │           │
                    weight      weight                  two branches

B runs the path and keeps the gradients that come to the branches. W runs each branch from these,
without the rest of the path. So nothing is computed twice, and a graph can be divided if each
weight belongs to one branch.
"""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import (
    GradientEdge,
    Node,
    _engine_run_backward,
    get_gradient_edge,
)
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

__all__ = ["Divided", "apart", "backward_of", "divide", "leaves_of"]

_ACCUMULATE: type[Node] = type(
    get_gradient_edge(torch.empty(0, dtype=torch.float32, device="cpu", requires_grad=True)).node
)
"""The type of the nodes that add to a leaf's gradient."""
_INDIVISIBLE = ("CheckpointFunctionBackward", "CompiledFunctionBackward")
"""The nodes of reentrant checkpoints, whose weights no graph shows, and of compiled functions."""
_OUTPUTS = object()
"""The holder of the nodes that the outputs reach without the path."""


class _Branch:
    """A node of the path, the leaves that only it reaches, and the gradients that came to it."""

    __slots__ = ("gradients", "leaves", "node", "plain")

    def __init__(self, node: Node, leaves: list[Tensor], *, plain: bool) -> None:
        """Create a branch; it is `plain` if its leaves and the nodes before them run no Python."""
        self.node, self.leaves, self.plain = node, leaves, plain
        self.gradients: tuple[Tensor | None, ...] | None = None

    def keep(self, gradients: tuple[Tensor | None, ...]) -> None:
        self.gradients = gradients

    def run(self, given: tuple[Tensor | None, ...], *, watch: bool) -> bool:
        """Add to the gradients of the leaves, from the gradients that came to the node.

        With `watch`, returns whether Python code of the path runs again: the node recomputes a
        checkpoint, or its output has a hook that changes the gradient.
        """
        edges = [(GradientEdge(self.node, at), each) for at, each in enumerate(given)]
        edges = [(edge, each) for edge, each in edges if each is not None]
        if not edges:
            return False  # Autograd has left the gradient of the node undefined.
        calls = _Calls()
        changed = False

        def again(came: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
            nonlocal changed
            # Hooks of the node's output have changed these gradients in the first part already.
            changed = any(mine is not theirs for mine, theirs in zip(given, came, strict=True))
            calls.any = False
            return given

        handle = self.node.register_prehook(again)
        try:
            with calls if watch else nullcontext():
                # torch.autograd.backward would call the mode, and would leave it meanwhile.
                _engine_run_backward(
                    tuple([edge for edge, _ in edges]),
                    tuple([each for _, each in edges]),
                    False,
                    False,
                    tuple(self.leaves),
                    allow_unreachable=True,
                    accumulate_grad=True,
                )
        finally:
            handle.remove()
        plain = self.plain and all(type(each) is Tensor for _, each in edges)
        return changed or (plain and calls.any)


class Divided:
    """A backward in two parts, of which `for_inputs` must be called first, and each only once."""

    def __init__(
        self,
        branches: list[_Branch],
        beside: list[tuple[Tensor, Tensor | None]],
        path: list[tuple[Tensor, Tensor | None]],
        inputs: Sequence[Tensor],
        besides: int,
    ) -> None:
        """Create a divided backward.

        `beside` are the outputs that reach no input, each with its gradient, and `path` the others.
        `besides` counts the leaves that the former reach.
        """
        self._branches, self._beside, self._path = branches, beside, path
        self._inputs = inputs
        self._besides = besides
        self._roots: list[GradientEdge] = []
        self.left = besides + sum([len(branch.leaves) for branch in branches])
        """The number of leaves that have not been added to."""
        self.missing: list[Tensor] = []
        """The leaves whose branches the first part has not run."""
        self.repeats = False
        """Whether Python code of the path, such as a checkpoint's, has run in both parts."""

    @property
    def has_weights(self) -> bool:
        """Whether there is anything for `for_weights` to do."""
        return bool(self._branches or self._beside)

    def for_inputs(self) -> list[Tensor | None]:
        """Return the gradients of the inputs: None for an input that no gradient reaches."""
        wanted = [each for each in self._inputs if each.requires_grad]
        path, self._path = self._path, []
        if not path:
            return [None] * len(self._inputs)
        if any(isinstance(branch.node, BackwardCFunction) for branch in self._branches):
            # A node of Python does not keep its part of the graph alive in torch 2.11.
            self._roots = [get_gradient_edge(output) for output, _ in path]
        kept = [branch.node.register_prehook(branch.keep) for branch in self._branches]
        try:
            found = torch.autograd.grad(
                [output for output, _ in path],
                wanted,
                _gradients(path),
                retain_graph=bool(self._branches),
                allow_unused=True,
            )
        finally:
            for handle in kept:
                handle.remove()
        given = iter(found)
        gradients = [next(given) if each.requires_grad else None for each in self._inputs]
        return apart(
            gradients, [each for branch in self._branches for each in branch.gradients or ()]
        )

    def for_weights(self, *, watch: bool = False) -> None:
        """Add to the gradients of all leaves that are not inputs.

        With `watch`, `repeats` tells afterwards whether Python code of the path ran again.
        """
        if self._beside:
            torch.autograd.backward(
                [output for output, _ in self._beside], _gradients(self._beside)
            )
            self.left -= self._besides
        for branch in self._branches:
            if branch.gradients is None:
                self.missing += branch.leaves
                continue
            if branch.run(branch.gradients, watch=watch):
                self.repeats = True
            self.left -= len(branch.leaves)
        self._roots = []


def divide(
    outputs: Sequence[Tensor],
    gradients: Sequence[Tensor] | None,
    inputs: Sequence[Tensor],
    *,
    at_any_price: bool = False,
) -> Divided | None:
    """Return the backward of `outputs` in two parts, or None if it must run whole.

    `gradients` are those of the outputs, None for a loss of one element. It must run whole if a
    leaf can be reached in several ways, as in a layer that is used twice, or through a reentrant
    checkpoint. Unless `at_any_price`, it also runs whole if both parts would compute the same:
    in compiled code, and in a custom autograd.Function with weights.
    """
    given: Sequence[Tensor | None] = [None] * len(outputs) if gradients is None else gradients
    ends = {get_gradient_edge(each).node for each in inputs if each.requires_grad}
    roots = [get_gradient_edge(each).node for each in outputs]
    after, leads, order = _walk(roots, ends)
    if any(
        isinstance(node, BackwardCFunction)
        and type(node).__name__ in (_INDIVISIBLE[:1] if at_any_price else _INDIVISIBLE)
        for node in order
    ):
        return None
    holders: dict[Node, object] = {}
    branches, besides = [], 0
    starts: list[tuple[object, Iterable[Node]]] = [
        (node, [each for each in after[node] if not leads[each]])
        for node in reversed(order)
        if leads[node]
    ]
    starts.append((_OUTPUTS, [root for root in roots if not leads[root]]))
    for holder, start in starts:
        found = _held(holder, start, after, holders)
        if found is None:
            return None
        nodes, variables = found
        if holder is _OUTPUTS:
            besides = len(variables)
        if not variables or holder is _OUTPUTS:
            continue
        node = cast(Node, holder)
        custom = isinstance(node, BackwardCFunction)
        if custom and not at_any_price:
            return None
        plain = not custom and not any(map(_runs_python, nodes))
        branches.append(_Branch(node, variables, plain=plain))
    pairs = list(zip(outputs, given, strict=True))
    path = [pair for pair, root in zip(pairs, roots, strict=True) if leads[root]]
    beside = [pair for pair, root in zip(pairs, roots, strict=True) if not leads[root]]
    return Divided(branches, beside, path, inputs, besides)


def backward_of(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor] | None, inputs: Sequence[Tensor]
) -> list[Tensor | None]:
    """Run a backward in one piece; add to the weights' gradients, return the inputs' gradients."""
    found: list[Tensor | None] = [None] * len(inputs)

    def keep(place: int, gradient: Tensor) -> None:
        found[place] = gradient

    # A hook is given the gradient as it was computed; `grad` would have the strides of the input,
    # and kernels that add in the order of the strides would then round sums in another way.
    handles = [
        cast(Any, each).register_hook(partial(keep, place))
        for place, each in enumerate(inputs)
        if each.requires_grad and each.is_leaf
    ]
    try:
        if gradients is None and outputs and _is_plain_loss(outputs[0]):
            gradients = [torch.ones_like(outputs[0])]
        if gradients:
            # The worker has compared the shapes, which torch.autograd.backward would do again.
            _engine_run_backward(
                tuple(outputs),
                tuple(gradients),
                False,
                False,
                (),
                allow_unreachable=True,
                accumulate_grad=True,
            )
        elif outputs:
            torch.autograd.backward(list(outputs))
    finally:
        for handle in handles:
            handle.remove()
    for each in inputs:
        if each.is_leaf:
            each.grad = None
    return found


def _is_plain_loss(loss: Tensor) -> bool:
    """Return whether autograd would begin the backward of a loss with the gradient 1."""
    return type(loss) is Tensor and loss.is_floating_point()


def apart(found: Sequence[Tensor | None], held: Iterable[Tensor | None]) -> list[Tensor | None]:
    """Return the gradients of inputs, with a copy of each that shares memory with one of `held`.

    An addition passes its gradient on to both of its inputs, and a weight's gradient may be a view
    of it, or have it as its values. What is later added to the weight's, or divided there, must not
    change the gradient of the input, which may not have been sent yet.
    """
    taken = {_memory_of(each) for each in held if each is not None}
    return [
        each.clone() if each is not None and _memory_of(each) in taken else each for each in found
    ]


def _memory_of(tensor: Tensor) -> int:
    """Return the address of a tensor's memory, or of the memory of a sparse tensor's values."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    values = local._values() if local.is_sparse else local
    return values.untyped_storage().data_ptr()


def leaves_of(outputs: Sequence[Tensor]) -> dict[Node, Tensor]:
    """Return all leaves that the graph of `outputs` reaches, by the nodes that add to them."""
    _, _, order = _walk([get_gradient_edge(each).node for each in outputs], set())
    return {node: cast(Any, node).variable for node in order if type(node) is _ACCUMULATE}


def _walk(
    roots: Sequence[Node], ends: set[Node]
) -> tuple[dict[Node, list[Node]], dict[Node, bool], list[Node]]:
    """Walk a graph; return each node's next nodes, whether it leads to one of `ends`, and an order.

    In the order each node stands after the nodes that it reaches.
    """
    after: dict[Node, list[Node]] = {}
    leads: dict[Node, bool] = {}
    order: list[Node] = []
    for root in roots:
        if root in leads:
            continue
        stack = [root]
        while stack:
            node = stack[-1]
            nexts = after.get(node)
            if nexts is None:
                nexts = [each for each, _ in node.next_functions if each is not None]
                after[node] = nexts
                new = [each for each in nexts if each not in after]
                if new:
                    stack += new
                    continue
            stack.pop()
            if node not in leads:
                leads[node] = node in ends or any(leads[each] for each in nexts)
                order.append(node)
    return after, leads, order


def _held(
    holder: object,
    start: Iterable[Node],
    after: dict[Node, list[Node]],
    holders: dict[Node, object],
) -> tuple[list[Node], list[Tensor]] | None:
    """Give the nodes that `start` reaches to `holder`; return these and the leaves among them.

    Returns None if another holder has one of the nodes.
    """
    nodes, leaves = [], []
    stack = list(start)
    while stack:
        node = stack.pop()
        known = holders.get(node)
        if known is holder:
            continue
        if known is not None:
            return None
        holders[node] = holder
        nodes.append(node)
        if type(node) is _ACCUMULATE:
            leaves.append(cast(Any, node).variable)
        else:
            stack += after[node]
    return nodes, leaves


def _runs_python(node: Node) -> bool:
    """Return whether a node may run Python code: a custom function's, a hook's or a subclass's."""
    if type(node) is not _ACCUMULATE:
        return isinstance(node, BackwardCFunction)
    leaf = cast(Any, node).variable
    plain = type(leaf) in (Tensor, nn.Parameter)
    return not plain or bool(leaf._backward_hooks or leaf._post_accumulate_grad_hooks)


def _gradients(pairs: Sequence[tuple[Tensor, Tensor | None]]) -> list[Tensor]:
    return [torch.ones_like(each) if given is None else given for each, given in pairs]


class _Calls(TorchFunctionMode):
    """A context that notes whether Python code calls torch in it."""

    def __init__(self) -> None:
        super().__init__()
        self.any = False

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        self.any = True
        return function(*arguments, **(keywords or {}))
