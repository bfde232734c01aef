"""The table of the models of a link's delay."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from slackline.pipeline.forecast._bursts import fit_bursts
from slackline.pipeline.forecast._drift import fit_drift
from slackline.pipeline.forecast._history import Array, History
from slackline.pipeline.forecast._periodic import fit_periodic

__all__ = ["MODELS", "Model"]


class Model(Protocol):
    """A model of a link's delay, fitted to the link's history."""

    def at(self, seconds: Array) -> Array:
        """Return the delays in ms that are expected some seconds after the latest reading."""

    def sentence(self) -> str:
        """Return the forecast in words, which logs and reports show unchanged."""


MODELS: Mapping[str, Callable[[History], Model | None]] = MappingProxyType(
    {"periodic": fit_periodic, "drift": fit_drift, "bursts": fit_bursts}
)
"""For each model the function that fits it; the function returns None if the model does not fit."""
