"""The layers of a model, with times measured on a reference device."""

from dataclasses import dataclass

from slackline.errors import UsageError

__all__ = ["Layer", "Profile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The times, sizes and memory of one layer, for one microbatch."""

    name: str
    forward_ps: int
    backward_input_ps: int
    """The time of the backward that computes the gradient of the layer's input."""
    backward_weight_ps: int
    """The time of the backward that computes the gradients of the layer's weights."""
    output_bytes: int
    """The size of the layer's output. The gradient of the output has the same size."""
    parameter_bytes: int
    activation_bytes: int
    """The memory that a microbatch occupies from its forward to its backward for the weights."""

    def __post_init__(self) -> None:
        for name in (
            "forward_ps",
            "backward_input_ps",
            "backward_weight_ps",
            "output_bytes",
            "parameter_bytes",
            "activation_bytes",
        ):
            value = getattr(self, name)
            if value < 0:
                raise UsageError(f"{name} of layer {self.name!r} must be at least 0, not {value}")

    @property
    def work_ps(self) -> int:
        """The time of the layer's forward and backwards together."""
        return self.forward_ps + self.backward_input_ps + self.backward_weight_ps


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The layers of a model in their order; a device's speed is relative to the reference."""

    layers: tuple[Layer, ...]
    parameter_copies: int = 4
    """The memory for training, in multiples of the parameters' size.

    Training with Adam holds four copies: weights, gradients and two moments.
    """

    def __post_init__(self) -> None:
        if not self.layers:
            raise UsageError("a profile must have at least one layer")
        if self.parameter_copies < 1:
            raise UsageError(f"parameter_copies must be positive, not {self.parameter_copies}")
        if not any(each.forward_ps for each in self.layers):
            raise UsageError("a profile must have a layer with a forward longer than 0")
