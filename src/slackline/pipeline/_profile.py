"""A profile of a model's layers, measured by forwards and backwards of each layer alone.

F is a forward, B the backward for the input and W the backward for the weights, separated as a
stage of the runtime separates them: the first layer has no B, since no stage waits for it, and a
layer that computes all gradients at once (compiled, or with a reentrant checkpoint) has no W.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median

import torch
from torch import Tensor, nn

from slackline.errors import UsageError
from slackline.pipeline._backward import backward_of, divide
from slackline.plan.partition import Layer, Profile

__all__ = ["profile"]

_PS_PER_NS = 1000


def profile(
    modules: Sequence[nn.Module] | nn.Sequential,
    example_input: Tensor | tuple[Tensor, ...],
    *,
    repeats: int = 5,
    parameter_copies: int = 4,
) -> Profile:
    """Measure each layer of a model on this device; return the profile for `partition`.

    `modules` are the layers in order. Each layer takes the output of the previous one, a tensor or
    a tuple of tensors. `example_input` is one microbatch on the device of the layers. Times are
    medians of `repeats` runs, before which one run is not counted. `activation_bytes` counts the
    tensors that autograd saves, without parameters and buffers. `parameter_copies` is that of
    `Profile`. The parameters' gradients, the buffers and the state of random numbers are restored.
    Raises UsageError for wrong arguments, and for a layer whose output is not of tensors.
    """
    layers = list(modules)
    if not layers:
        raise UsageError("modules must have at least one layer")
    for number, module in enumerate(layers):
        if not isinstance(module, nn.Module):
            raise UsageError(f"modules[{number}] must be a module, not {type(module).__name__}")
    if repeats < 1:
        raise UsageError(f"repeats must be a positive integer, not {repeats}")
    inputs = _tensors(example_input, "example_input")
    device = inputs[0].device
    found = []
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.enable_grad():
        for number, module in enumerate(layers):
            with _unchanged(module):
                layer, inputs = _measured(module, number, inputs, device, repeats)
            found.append(layer)
    return Profile(layers=tuple(found), parameter_copies=parameter_copies)


def _measured(
    module: nn.Module, number: int, given: tuple[Tensor, ...], device: torch.device, repeats: int
) -> tuple[Layer, tuple[Tensor, ...]]:
    """Return a layer's measurements, and its detached outputs."""
    name = f"{number} {type(module).__name__}"
    outputs, activation = _saved(module, name, _inputs(given, number))
    rows = [_once(module, name, _inputs(given, number), device) for _ in range(repeats + 1)][1:]
    forward, backward, weight = (
        round(median(column)) * _PS_PER_NS for column in zip(*rows, strict=True)
    )
    layer = Layer(
        name=name,
        forward_ps=forward,
        backward_input_ps=backward,
        backward_weight_ps=weight,
        output_bytes=sum(each.nbytes for each in outputs),
        parameter_bytes=sum(each.nbytes for each in module.parameters()),
        activation_bytes=activation,
    )
    return layer, tuple(each.detach() for each in outputs)


def _inputs(given: tuple[Tensor, ...], number: int) -> tuple[Tensor, ...]:
    """Return detached inputs; those of all layers but the first require gradients."""
    return tuple(
        each.detach().requires_grad_(number > 0 and each.is_floating_point()) for each in given
    )


def _saved(
    module: nn.Module, name: str, inputs: tuple[Tensor, ...]
) -> tuple[tuple[Tensor, ...], int]:
    """Run a forward; return its outputs and the bytes that autograd saves for the backward.

    Tensors that share memory count once.
    """
    own = {each.untyped_storage().data_ptr() for each in (*module.parameters(), *module.buffers())}
    sizes: dict[int, int] = {}
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)  # No other storage gets this address while the tensor lives.
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = _tensors(module(*inputs), f"the output of layer {name}")
    return outputs, sum(sizes.values())


def _once(
    module: nn.Module, name: str, inputs: tuple[Tensor, ...], device: torch.device
) -> tuple[int, int, int]:
    """Return the nanoseconds of one F, B and W."""
    outputs: tuple[Tensor, ...] = ()

    def forward() -> None:
        nonlocal outputs
        outputs = _tensors(module(*inputs), f"the output of layer {name}")

    forward_ns = _timed(forward, device)
    usable = [each for each in outputs if each.requires_grad]
    wanted = [each for each in inputs if each.requires_grad]
    gradients = [torch.ones_like(each) for each in usable]
    if not usable:
        return forward_ns, 0, 0
    if not wanted:
        return forward_ns, 0, _timed(lambda: backward_of(usable, gradients, ()), device)
    divided = divide(usable, gradients, wanted)
    if divided is None or not divided.has_weights:
        return forward_ns, _timed(lambda: backward_of(usable, gradients, wanted), device), 0
    backward_ns = _timed(divided.for_inputs, device)
    return forward_ns, backward_ns, _timed(divided.for_weights, device)


def _timed(call: Callable[[], object], device: torch.device) -> int:
    """Return the nanoseconds of a call, with the device's work that the call starts."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter_ns()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter_ns() - start


@contextmanager
def _unchanged(module: nn.Module) -> Iterator[None]:
    """Restore the module's gradients and buffers at the end."""
    parameters, buffers = list(module.parameters()), list(module.buffers())
    gradients = [each.grad for each in parameters]
    values = [each.clone() for each in buffers]
    for each in parameters:
        each.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, value in zip(buffers, values, strict=True):
                buffer.copy_(value)


def _tensors(value: object, what: str) -> tuple[Tensor, ...]:
    found = tuple(value) if isinstance(value, tuple | list) else (value,)
    for each in found:
        if not isinstance(each, Tensor):
            raise UsageError(
                f"{what} must be a tensor or a tuple of tensors, not {type(each).__name__}"
            )
    if not found:
        raise UsageError(f"{what} must have at least one tensor")
    return found
