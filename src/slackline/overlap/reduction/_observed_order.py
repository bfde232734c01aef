"""The order in which backward passes compute gradients, averaged over the ranks.

Gradients that are adjacent in memory form groups, and a group waits for its latest gradient. The
order of registration need not be the reverse of the backward's order, so the ranks record the order
of gradients in the first step.

    end of step   1                         2
                  | post the observed order | read the ranks' averages; gradients move
"""

from collections.abc import Callable, Mapping, Sequence

from slackline.overlap.exchange import Average
from slackline.overlap.reduction._parameter_state import ParameterState

__all__ = ["ObservedOrder"]


class ObservedOrder:
    """The order in which backward passes compute the gradients of one optimizer.

    All ranks call `step` at the same steps, with the same parameters.
    """

    def __init__(self, average: Average) -> None:
        self.observing = True
        """True while `note` must be called for each gradient."""
        self._average = average
        self._places: dict[int, int] = {}
        self._averages: Callable[[], list[float]] | None = None
        self._given: dict[int, float] | None = None
        """The place of each parameter in a checkpoint's order; None without a checkpoint."""
        self.kept: list[int] | None = None
        """The parameters' numbers in the order that was observed or that a checkpoint gave."""

    def keep(self, order: Sequence[int]) -> None:
        """Use a checkpoint's order of gradients from the next `step` on, and observe no more."""
        self.observing, self._averages = False, None
        self._given = {index: float(place) for place, index in enumerate(order)}

    def note(self, state: ParameterState) -> None:
        """Record the place of a gradient that has just arrived, if the order is observed."""
        if self.observing:
            self._places.setdefault(state.index, len(self._places))

    def step(self, states: Sequence[ParameterState]) -> list[ParameterState] | None:
        """Return all gradients in a better order, or None if no better order is known yet.

        Gradients of one allocation and type stay together. Gradients that never arrived are last.
        """
        if self._given is not None:
            given, self._given = self._given, None
            return self._sorted(states, given)
        if self._averages is not None:
            averages, self._averages = self._averages(), None
            if min(averages) > len(averages) - 0.5:  # no rank has had a gradient
                self.observing = True
                return None
            known = states[: len(averages)]
            return self._sorted(
                states, {each.index: place for each, place in zip(known, averages, strict=True)}
            )
        if self.observing and states:
            self.observing = False
            last = float(len(states))
            self._averages = self._average([self._places.get(each.index, last) for each in states])
            self._places.clear()
        return None

    def _sorted(
        self, states: Sequence[ParameterState], places: Mapping[int, float]
    ) -> list[ParameterState] | None:
        last = float(len(states))
        order = sorted(
            states,
            key=lambda each: (each.block, str(each.flat.dtype), places.get(each.index, last)),
        )
        self.kept = [state.index for state in order]
        return None if order == list(states) else order
