"""Dicts of parameters in which a lookup waits for the pending update of that parameter.

A module keeps its parameters in a dict and looks them up there at each use: in its forward, in
`parameters()`, in `state_dict()`. A lazy dict first reports the lookup to a Reader, which waits for
this parameter only, so no path through the module sees an old value. An optimizer's parameter
groups are lazy too: code that asks a group for its "params" is about to read gradients.

    lookup in a forward         finish this parameter's pending step
    any other lookup            finish the step, and wait for the gradient's reduction
    all parameters of a dict    do the same for each parameter
"""

import copy
from collections.abc import ItemsView, Iterator, ValuesView
from typing import Any, Protocol

from torch import Tensor, nn

from slackline.overlap.reduction._model_state import ModelState

__all__ = ["LazyGroup", "LazyParameters", "Reader"]


class Reader(Protocol):
    """An object that lazy dicts notify before parameters are read."""

    model: ModelState
    """The state that tells whether reads must be reported now."""

    def read(self, parameter: nn.Parameter, siblings: "LazyParameters") -> None:
        """Handle the lookup of one parameter; `siblings` are the parameters of the same module."""

    def read_all(self, parameters: Iterator[Tensor]) -> None:
        """Handle the lookup of several parameters, whose gradients may be read next."""


class LazyParameters(dict[str, nn.Parameter | None]):
    """A module's `_parameters` dict, which reports each lookup to a Reader."""

    def __init__(self, plain: dict[str, nn.Parameter | None], reader: Reader) -> None:
        super().__init__(plain)
        self._reader, self._model = reader, reader.model

    def __getitem__(self, name: str) -> nn.Parameter | None:
        parameter = dict.__getitem__(self, name)
        if self._model.busy and parameter is not None:
            self._reader.read(parameter, self)
        return parameter

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names.

        The override makes `dict(...)` of this object call `__getitem__` for each name.
        """
        return super().__iter__()

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def items(self) -> ItemsView[str, nn.Parameter | None]:  # type: ignore[override]
        self._finish()
        return super().items()

    def values(self) -> ValuesView[nn.Parameter | None]:  # type: ignore[override]
        self._finish()
        return super().values()

    def copy(self) -> dict[str, nn.Parameter | None]:
        return dict(self.items())

    def peek(self) -> Iterator[nn.Parameter]:
        """Return the parameters without reporting a read."""
        return (parameter for parameter in super().values() if parameter is not None)

    def plain(self) -> dict[str, nn.Parameter | None]:
        """Return an ordinary dict of the same items, without reporting a read."""
        return dict(super().items())

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, nn.Parameter | None]:
        self._finish()
        return copy.deepcopy(self.plain(), memo)

    def __reduce__(self) -> tuple[Any, ...]:
        self._finish()
        return dict, (self.plain(),)

    def _finish(self) -> None:
        if self._model.busy:
            self._reader.read_all(self.peek())


class LazyGroup(dict[str, Any]):
    """A parameter group of an optimizer, which reports lookups of "params" to a Reader."""

    def __init__(self, plain: dict[str, Any], reader: Reader) -> None:
        super().__init__(plain)
        self._reader, self._model = reader, reader.model

    def __getitem__(self, key: str) -> Any:
        if key == "params" and self._model.busy:
            self._reader.read_all(iter(super().__getitem__(key)))
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names.

        The override makes `dict(...)` of this object call `__getitem__` for each name.
        """
        return super().__iter__()

    def plain(self) -> dict[str, Any]:
        """Return an ordinary dict of the same items, without reporting a read."""
        return dict(super().items())

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy(self.plain(), memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.plain(),)
