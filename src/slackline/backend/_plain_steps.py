"""The training steps of a script without slackline's wrappers: the calls of its optimizers."""

from collections.abc import Callable
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

__all__ = ["PlainSteps", "plain_steps"]


class PlainSteps:
    """A hook on all optimizers of this process, which tells an engine about each call of `step`.

    slackline.overlap and slackline.pipeline record their steps themselves, with more detail: then
    the hook is removed for good.
    """

    def __init__(self) -> None:
        self._hook: RemovableHandle | None = None
        self._left = False
        self._optimizers: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()

    def begin(self, stepped: Callable[[int], None]) -> None:
        """Call `stepped` with the optimizer's index before each step, unless `leave` was called."""
        self.end()
        if self._left:
            return

        def step(optimizer: Optimizer, *_: Any) -> None:
            index = self._optimizers.get(optimizer)
            if index is None:
                # The optimizer of a later phase of training takes the place of one that is gone.
                used = set(self._optimizers.values())
                index = next(number for number in count() if number not in used)
                self._optimizers[optimizer] = index
            stepped(index)

        self._hook = register_optimizer_step_pre_hook(step)

    def end(self) -> None:
        """Remove the hook, because the engine is about to close."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def leave(self) -> None:
        """Remove the hook for good, because another part of slackline records the steps."""
        self._left = True
        self.end()


plain_steps = PlainSteps()
"""The hook of this process: torch calls it for every optimizer."""
