"""The variant of an optimizer's steps: the size of gradient groups is given, or found by trial.

If sums are bit-identical whatever the groups are, a trial is repeated after a lasting change of the
step time. Otherwise the choice of groups affects the rounding of sums. The choice is then made once
and saved in the optimizer's state, so that training from a checkpoint does not choose again.
"""

import logging
from collections.abc import Sequence

from slackline.overlap._recorder import Recorder
from slackline.overlap.exchange import Average, Exchange
from slackline.overlap.reduction._gradient_group import count_groups
from slackline.overlap.reduction._parameter_state import ParameterState
from slackline.overlap.reduction.tuning._drift import Drift
from slackline.overlap.reduction.tuning._trial import Candidate, Outcome, Trial, Variant

__all__ = ["Tuning"]

_log = logging.getLogger("slackline.overlap")

_FIRST_BYTES = 1 << 20
"""The bytes of a group before a trial has found a better size."""
_SIZES = (0, 256 << 10, 1 << 20, 4 << 20)
"""The group sizes in bytes that a trial tries; 0 stands for a group for each gradient. A trial also
tries one group for all gradients."""
_TOGETHER = 1 << 20
"""The group size in bytes that a trial also tries with one update of all parameters, as it does
with one group for all gradients. Many small parameters are updated faster together."""
_REST = 20
"""The ratio of the steps between two trials to the steps of a trial, which are thus at most 5 %."""


class Tuning:
    """The variant of one optimizer's steps, which trials may change from step to step."""

    def __init__(
        self, exchange: Exchange, recorder: Recorder, average: Average, *, group_bytes: int | None
    ) -> None:
        """Create an object that chooses the size of gradient groups, and the way of the update.

        `group_bytes` None finds the size by trial. `average` averages step times over the ranks.
        `recorder` gives the time and receives each choice.
        """
        self.variant = Variant(group_bytes=_FIRST_BYTES if group_bytes is None else group_bytes)
        """The variant of the present step."""
        self.result = ""
        """The result of the latest trial as text; empty if no trial has ended."""
        self._tries = group_bytes is None and exchange.size > 1
        self._exchange = exchange
        self._average = average
        self._trial: Trial | None = None
        self._trial_steps = 0
        self._drift: Drift | None = None
        self._kept: int | None = None
        self._recorder = recorder
        self._since = recorder.clock()

    @property
    def group_bytes(self) -> int:
        """The most bytes of gradients in one reduction."""
        return self.variant.group_bytes

    @property
    def kept(self) -> int | None:
        """The gradient group size that a checkpoint must save, or None.

        The size must be saved if the rounding of later sums depends on the size.
        """
        return self._kept

    def keep(self, group_bytes: int) -> bool:
        """Use a checkpoint's gradient group size and try no other; return whether it is new.

        If the size is not found by trial, nothing changes.
        """
        if not self._tries:
            return False
        before, self.variant = self.group_bytes, Variant(group_bytes=group_bytes)
        self._kept = group_bytes
        self._tries = False
        self._recorder.decided("groups", str(self.variant), "the optimizer's state has this choice")
        return group_bytes != before

    def step(self, states: Sequence[ParameterState]) -> bool:
        """Record a step's end; return whether the next step has gradient groups of another size."""
        if not self._tries:
            return False
        now = self._recorder.clock()
        elapsed_ns, self._since = now - self._since, now
        if self._drift is not None:
            if self._drift.step(elapsed_ns):
                self._recorder.decided("groups", "another trial", self._drift.told)
                if self._exchange.rank == 0:
                    _log.info("%s: groups are tried again", self._drift.told)
                self._drift = None
            return False
        if self._trial is None:
            self._trial = Trial(_candidates(states), self._average, first=self.variant)
            self._trial_steps = 0
        self._trial_steps += 1
        before, self.variant = self.group_bytes, self._trial.step(elapsed_ns)
        if self._trial.outcome is not None:
            self._end(self._trial.outcome)
        return self.group_bytes != before

    def _end(self, outcome: Outcome) -> None:
        """Record the result of a trial; decide whether another trial may follow."""
        self.result, self._trial = str(outcome), None
        several = bool(outcome.times_ns)
        self._tries = several and self._exchange.rank_ordered
        if self._tries:
            self._drift = Drift(self._average, rest=_REST * self._trial_steps)
        elif several:
            self._kept = self.group_bytes
        stays = "; the optimizer's state keeps this choice" if self._kept is not None else ""
        chosen = str(outcome.variant)
        self._recorder.decided("groups", chosen, outcome.reason + stays)
        if several and self._exchange.rank == 0:
            self._recorder.promised("groups", chosen, round(outcome.times_ns[0][1]))
        if self._exchange.rank == 0:
            _log.info("gradients are reduced in %s%s", outcome, stays)


def _candidates(states: Sequence[ParameterState]) -> list[Candidate]:
    """Return the variants to try: one for each number of groups, and some with one update."""
    everything = sum(state.nbytes for state in states)
    sizes = (*(size for size in _SIZES if size < everything), everything)
    counts = {count_groups(states, size): size for size in sizes}
    found = [
        Candidate(variant=Variant(group_bytes=size), groups=count) for count, size in counts.items()
    ]
    together = {size: count for count, size in counts.items() if size in (_TOGETHER, everything)}
    found += [
        Candidate(variant=Variant(group_bytes=size, deferred=False), groups=count)
        for size, count in together.items()
    ]
    return found
