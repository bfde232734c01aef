"""Which groups an optimizer's gradients are reduced in: as asked, or found by trial."""

import logging
from collections.abc import Callable, Sequence

import torch

from slackline.overlap._exchange import Exchange
from slackline.overlap._gradient_group import count_groups
from slackline.overlap._parameter_state import ParameterState
from slackline.overlap._recorder import Clock
from slackline.overlap._trial import Candidate, Trial

__all__ = ["Tuning"]

_log = logging.getLogger("slackline.overlap")

_FIRST_BYTES = 1 << 20
"""Groups before a trial has found better ones."""
_SIZES = (0, 256 << 10, 1 << 20, 4 << 20)
"""What a trial tries, from a group for each gradient on; besides one for all."""


class Tuning:
    """The size of one optimizer's groups, from step to step."""

    def __init__(
        self, exchange: Exchange, clock: Clock, *, key: int, group_bytes: int | None
    ) -> None:
        """`key`: of the reduction in which the ranks' times meet. `group_bytes` None: by trial."""
        self.group_bytes = _FIRST_BYTES if group_bytes is None else group_bytes
        self._tries = group_bytes is None and exchange.size > 1
        self._exchange = exchange
        self._key = key
        self._trial: Trial | None = None
        self._clock = clock
        self._since = clock()

    @property
    def result(self) -> str:
        """What the trial has found; empty where it has not ended or there is none."""
        outcome = None if self._trial is None else self._trial.outcome
        return "" if outcome is None else str(outcome)

    def step(self, states: Sequence[ParameterState]) -> bool:
        """A step is over: return whether the next one has groups of another size."""
        if not self._tries:
            return False
        now = self._clock()
        elapsed_ns, self._since = now - self._since, now
        if self._trial is None:
            everything = sum(state.nbytes for state in states)
            sizes = (*(size for size in _SIZES if size < everything), everything)
            counts = {count_groups(states, size): size for size in sizes}
            candidates = [
                Candidate(group_bytes=size, groups=count) for count, size in counts.items()
            ]
            self._trial = Trial(candidates, self._meet, first=self.group_bytes)
        before, self.group_bytes = self.group_bytes, self._trial.step(elapsed_ns)
        if self._trial.outcome is not None:
            self._tries = False
            if self._exchange.rank == 0:
                _log.info("gradients are reduced in %s", self._trial.outcome)
        return self.group_bytes != before

    def _meet(self, times: list[float]) -> Callable[[], list[float]]:
        """Post this rank's times; what it returns waits for the averages over the ranks."""
        (flat,) = self._exchange.allocate([(len(times), torch.float32)])
        flat.copy_(torch.tensor(times))
        pending = self._exchange.reduction(self._key, flat, average=True)(0)

        def averages() -> list[float]:
            pending.wait()
            found: list[float] = flat.tolist()
            return found

        return averages
