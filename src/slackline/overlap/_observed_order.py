"""The order in which backward passes bring gradients, on the average of the ranks.

Neighbours in memory form groups, and a group waits for its last gradient. What the model registers
last need not be what its backward reaches first, so the ranks note the order of the first step.

    end of step   1                        2
                  | post the places seen   | take the averages of all ranks: gradients move
"""

from collections.abc import Callable, Mapping, Sequence

from slackline.overlap._parameter_state import ParameterState
from slackline.overlap._rank_averages import Average

__all__ = ["ObservedOrder"]


class ObservedOrder:
    """One optimizer's order. All ranks call `step` at the same steps, with the same parameters."""

    def __init__(self, average: Average) -> None:
        self.observing = True
        """Whether each gradient is to be noted."""
        self._average = average
        self._places: dict[int, int] = {}
        self._averages: Callable[[], list[float]] | None = None
        self._given: dict[int, float] | None = None
        """Each parameter's place, where it is known already."""
        self.kept: list[int] | None = None
        """The numbers of the parameters in the order that was found, or given."""

    def keep(self, order: Sequence[int]) -> None:
        """Have the next `step` use the order of a checkpoint, whatever this training shows."""
        self.observing, self._averages = False, None
        self._given = {index: float(place) for place, index in enumerate(order)}

    def note(self, state: ParameterState) -> None:
        """Note the place of a gradient that has come."""
        if self.observing:
            self._places.setdefault(state.index, len(self._places))

    def step(self, states: Sequence[ParameterState]) -> list[ParameterState] | None:
        """A step is over: return all gradients in a better order, once the ranks have found one.

        Those of one allocation and type stay together. What never came is last.
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
