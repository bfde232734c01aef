"""Steps that the user has called for and that parameters have still to take.

Parameters whose gradients are reduced together step together, in one call of the optimizer.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from torch import Tensor
from torch.optim import Optimizer

from slackline.overlap._gradient_group import GradientGroup
from slackline.overlap._slot import Clear, Phase, Slot
from slackline.overlap._stepper import Settings, settings_of, step_some

__all__ = ["DeferredSteps"]


class DeferredSteps:
    """The parameters of one optimizer that have not taken the last step yet."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._settings: Settings = ()
        self._batches: dict[GradientGroup | None, list[Slot]] = {}
        """By the reduction that they wait for; under None those that wait for nothing."""

    def __bool__(self) -> bool:
        """Whether some parameter has not taken its step."""
        return bool(self._batches)

    def defer(self, slots: Iterable[Slot]) -> None:
        """Have each parameter that has a gradient take a step later, with the settings of now."""
        assert not self._batches
        self._settings = settings_of(self._optimizer)
        batches = self._batches
        for slot in slots:
            if slot.phase is not Phase.POSTED:
                slot.grad = slot.parameter.grad
                if slot.grad is None:
                    continue
            slot.due = True
            batch = batches.get(slot.posting)
            if batch is None:
                batch = batches[slot.posting] = []
            slot.batch = batch
            batch.append(slot)

    def first(self) -> Slot:
        """Return a parameter that has not taken its step, the most urgent one."""
        return next(iter(self._batches.values()))[0]

    def take(self, slot: Slot, companions: Iterable[Slot] = ()) -> None:
        """Step a parameter whose gradient is reduced, and all that were reduced with it.

        The same goes for those of the companions whose gradients are reduced.
        """
        ready = {id(slot.batch): slot.batch}
        for other in companions:
            if other.due and other.done():
                ready[id(other.batch)] = other.batch
        chosen = [key for key, batch in self._batches.items() if id(batch) in ready]
        self._run(chosen)

    def sweep(self) -> None:
        """Take all steps that need no waiting."""
        self._run([group for group in self._batches if group is None or group.done()])

    def forget(self) -> None:
        """Take none of the steps any more."""
        for slot in self._slots(self._batches):
            slot.due = False
        self._batches.clear()

    def _slots(self, groups: Iterable[GradientGroup | None]) -> Iterator[Slot]:
        for group in groups:
            yield from self._batches[group]

    def _run(self, groups: list[GradientGroup | None]) -> None:
        if not groups:
            return
        for group in groups:
            if group is not None:
                group.wait()
        ready = list(self._slots(groups))
        chosen: defaultdict[int, list[Tensor]] = defaultdict(list)
        for slot in ready:
            slot.parameter.grad = grad = slot.grad
            if grad is not None:
                chosen[slot.group].append(slot.parameter)
        step_some(self._optimizer, self._settings, chosen)
        for slot in ready:
            slot.due = False
            if slot.clear is not Clear.NO:
                slot.forget(slot.clear)
        for group in groups:
            del self._batches[group]
