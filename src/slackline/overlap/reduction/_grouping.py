"""The grouping of one optimizer's gradients for reductions, and their layout in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from slackline.overlap._recorder import Recorder
from slackline.overlap.exchange import Exchange, RankAverages
from slackline.overlap.reduction._gradient_group import GradientGroup, cut
from slackline.overlap.reduction._observed_order import ObservedOrder
from slackline.overlap.reduction._parameter_state import ParameterState, Use
from slackline.overlap.reduction.tuning import Tuning

__all__ = ["Change", "Grouping"]

_NOTHING = {"bytes": None, "order": None}


@dataclass(frozen=True)
class Change:
    """A change of the gradient groups, which `Grouping.apply` makes."""

    needed: bool
    """True if the groups must be formed anew."""
    order: Sequence[ParameterState] | None = None
    """All gradients in their new order in memory; None if they stay where they are."""

    def __bool__(self) -> bool:
        """Return whether anything changes."""
        return self.needed or self.order is not None


class Grouping:
    """The gradient groups of one optimizer, which may change from step to step.

    All ranks call `decide` at the same steps, and the groups change alike on all ranks.
    """

    def __init__(
        self,
        exchange: Exchange,
        recorder: Recorder,
        *,
        key: int,
        average: bool,
        group_bytes: int | None,
    ) -> None:
        """Create a grouping that holds no gradients yet; `add` registers gradients.

        `recorder` receives the choices of groups. `key` identifies the reductions that average
        figures over the ranks. `group_bytes` None finds the size by trial.
        """
        self.states: list[ParameterState] = []
        """The parameters' states in the order of the gradients in memory."""
        self.groups: list[GradientGroup] = []
        self.parity = 0
        """The parity of the step's number."""
        self._averages = RankAverages(exchange, key=key)
        self.tuning = Tuning(exchange, recorder, self._averages, group_bytes=group_bytes)
        self._exchange = exchange
        self._average = average
        self._observed = ObservedOrder(self._averages)
        # If each group has one gradient, the order of the groups matters only where ranks post in a
        # fixed order.
        order_counts = group_bytes != 0 or not exchange.matches_by_key
        self._observed.observing = order_counts and exchange.size > 1
        self._cut_later = False

    @property
    def observing(self) -> bool:
        """True while `note` must be called for each gradient."""
        return self._observed.observing

    def note(self, state: ParameterState) -> None:
        """Record the arrival of a gradient, to learn the order of the backward pass."""
        self._observed.note(state)

    def add(self, states: Sequence[ParameterState]) -> None:
        """Register more gradients, in their order in memory, and form gradient groups of them."""
        self.states += states
        self._cut(states)

    @property
    def kept(self) -> dict[str, Any] | None:
        """The choices that a checkpoint must save so that later sums are bit-identical, or None.

        "bytes" is the size of groups, or None while sizes are tried; "order" is a list of
        parameter numbers.
        """
        kept = {"bytes": self.tuning.kept, "order": self._observed.kept}
        return None if self._exchange.rank_ordered or kept == _NOTHING else kept

    def keep(self, kept: Mapping[str, Any], *, now: bool) -> Change:
        """Use the gradient groups of a checkpoint, either `now` or from the next step on.

        Returns the change to make now. Nothing changes in an exchange that adds in rank order,
        since the sums there do not depend on the groups.
        """
        if self._exchange.rank_ordered:
            return Change(needed=False)
        cut = kept["bytes"] is not None and self.tuning.keep(kept["bytes"])
        order = None
        if kept["order"] is not None:
            self._observed.keep(kept["order"])
            order = self._observed.step(self.states) if now else None
        self._cut_later = cut and not now
        return Change(cut and now, order)

    def alone(self, state: ParameterState) -> GradientGroup:
        """Return a new gradient group with this gradient alone, for a second reduction."""
        (group,) = cut([state], 0, self._exchange, average=self._average)
        return group

    def decide(self) -> Change:
        """Choose the groups of the next step at the end of a step; return the change to make.

        Groups change with the observed order of gradients, with the size under trial, or with the
        set of ranks that use a parameter. Each rank decides alone, and all ranks must make the same
        decision. Therefore only reductions of the previous step count, which every rank has
        awaited.
        """
        self.parity ^= 1
        needed = self.tuning.step(self.states) or self._cut_later
        self._cut_later = False
        for group in self.groups:
            for state, use in group.changes[self.parity]:
                state.use = use if state.use is Use.EVERYWHERE else Use.SOMEWHERE
                needed = True
            group.changes[self.parity].clear()
        return Change(needed, self._observed.step(self.states))

    def apply(self, change: Change) -> None:
        """Make a change of the groups; if gradients move, none of them may be in flight."""
        if change.order is not None:
            self._move(change.order)
        self.groups = []
        self._cut(self.states)

    def done(self) -> bool:
        """Return whether no averaging of figures over the ranks is in flight."""
        return self._averages.done()

    def close(self) -> None:
        """Block until no averaging of figures over the ranks is in flight."""
        self._averages.close()

    def _move(self, order: Sequence[ParameterState]) -> None:
        """Move all gradients in memory to this order."""
        for state in order:
            state.detach()
        for _, states in groupby(order, key=attrgetter("block")):
            moved = list(states)
            flats = self._exchange.rearrange([state.flat for state in moved])
            for state, flat in zip(moved, flats, strict=True):
                state.place(flat)
        self.states = list(order)

    def _cut(self, states: Sequence[ParameterState]) -> None:
        """Cut a sequence of gradients into further groups; no gradient of it may be posted yet."""
        size = self.tuning.group_bytes
        self.groups += cut(tuple(states), size, self._exchange, average=self._average)
