"""The grouping of one optimizer's gradients for reductions, and their layout in memory."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from slackline.overlap._recorder import Recorder
from slackline.overlap.exchange import Exchange, InOrder, RankAverages
from slackline.overlap.reduction._gradient_group import GradientGroup, cut
from slackline.overlap.reduction._observed_order import ObservedOrder
from slackline.overlap.reduction._parameter_state import ParameterState, Use
from slackline.overlap.reduction.tuning import Tuning

__all__ = ["Grouping"]

_NOTHING = {"bytes": None, "order": None}


class Grouping:
    """The gradient groups of one optimizer, which may change from step to step.

    All ranks call `step` at the same steps, and the groups change alike on all ranks.
    """

    def __init__(
        self,
        exchange: Exchange,
        recorder: Recorder,
        finish: Callable[[ParameterState], None],
        *,
        key: int,
        average: bool,
        group_bytes: int | None,
    ) -> None:
        """Create a grouping that holds no gradients yet; `add` registers gradients.

        `recorder` receives the choices of groups. `finish` waits for a gradient and takes its
        pending step. `key` identifies the reductions
        that average figures over the ranks. `group_bytes` None finds the size by trial.
        """
        self.states: list[ParameterState] = []
        """The parameters' states in the order of the gradients in memory."""
        self.groups: list[GradientGroup] = []
        self.parity = 0
        """The parity of the step's number."""
        self._averages = RankAverages(exchange, key=key)
        self.tuning = Tuning(exchange, recorder, self._averages, group_bytes=group_bytes)
        self._exchange = exchange
        self._finish = finish
        self._average = average
        self._order = InOrder(())
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

    @property
    def posted(self) -> bool:
        """True if each group has been posted in this step."""
        return all(group.posted for group in self.groups)

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

    def keep(self, kept: Mapping[str, Any], *, now: bool) -> bool:
        """Use the gradient groups of a checkpoint, either `now` or from the next step on.

        Returns whether the groups have changed. Nothing changes in an exchange that adds in rank
        order, since the sums there do not depend on the groups.
        """
        if self._exchange.rank_ordered:
            return False
        cut = kept["bytes"] is not None and self.tuning.keep(kept["bytes"])
        moved = False
        if kept["order"] is not None:
            self._observed.keep(kept["order"])
            moved = now and self._rearrange()
        self._cut_later = cut and not now
        changed = moved or (cut and now)
        if changed:
            self._recut()
        return changed

    def whole(self, group: GradientGroup) -> Iterator[GradientGroup]:
        """Record that all gradients of `group` have arrived; yield groups that may now be posted.

        If ranks must post in a fixed order, a group waits for the groups before it.
        """
        if self._exchange.matches_by_key:
            yield group
        else:
            by_key = {group.key: group for group in self.groups}
            for key in self._order.offer(group.key):
                yield by_key[key]

    def alone(self, state: ParameterState) -> GradientGroup:
        """Return a new gradient group with this gradient alone, for a second reduction."""
        (group,) = cut([state], 0, self._exchange, average=self._average)
        return group

    def restart(self) -> None:
        """Reset for the next training step: no gradient has arrived or been posted yet."""
        for group in self.groups:
            group.restart()
        self._order.restart()

    def step(self) -> bool:
        """Choose the groups of the next step at the end of a step; return whether they changed.

        Groups change with the observed order of gradients, with the size under trial, or with the
        set of ranks that use a parameter. Each rank decides alone, and all ranks must make the same
        decision. Therefore only reductions of the previous step count, which every rank has
        awaited.
        """
        self.parity ^= 1
        changed = self.tuning.step(self.states) or self._cut_later
        self._cut_later = False
        for group in self.groups:
            for state, use in group.changes[self.parity]:
                state.use = use if state.use is Use.EVERYWHERE else Use.SOMEWHERE
                changed = True
            group.changes[self.parity].clear()
        changed = self._rearrange() or changed
        if changed:
            self._recut()
        return changed

    def done(self) -> bool:
        """Return whether no reduction uses the exchange's memory any more."""
        return self._averages.done() and all(state.done() for state in self.states)

    def close(self) -> None:
        """Block until no averaging of figures over the ranks is in flight."""
        self._averages.close()

    def _rearrange(self) -> bool:
        """Move the gradients to the observed order, if there is one; return whether they moved."""
        order = self._observed.step(self.states)
        if order is None:
            return False
        for state in order:
            self._finish(state)
            state.detach()
        for _, states in groupby(order, key=attrgetter("block")):
            moved = list(states)
            flats = self._exchange.rearrange([state.flat for state in moved])
            for state, flat in zip(moved, flats, strict=True):
                state.place(flat)
        self.states = order
        return True

    def _recut(self) -> None:
        self.groups = []
        self._cut(self.states)

    def _cut(self, states: Iterable[ParameterState]) -> None:
        """Cut a sequence of gradients into further groups; no gradient of it may be posted yet."""
        size = self.tuning.group_bytes
        self.groups += cut(tuple(states), size, self._exchange, average=self._average)
        for group in self.groups:
            for state in group.states:
                state.gradient_group = group
        self._order = InOrder([group.key for group in self.groups])
