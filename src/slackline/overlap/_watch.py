"""What the parts of one wrapped model share: who owns a parameter, and what the model is doing."""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from slackline.overlap._guard import GuardedParameters
from slackline.overlap._slot import Slot

if TYPE_CHECKING:
    from slackline.overlap._session import Session

__all__ = ["Watch"]


class Watch:
    """Decides what a reader of a parameter must wait for; records the order of first use."""

    def __init__(self) -> None:
        self.busy = True
        self._synchronize = True
        self.sessions: list[Session] = []
        self.owners: dict[int, tuple[Session, Slot]] = {}
        """By the parameter's id."""
        self.backwards = 0
        """Backward passes so far that came through what the wrapper's forward gave."""
        self._task = -1
        self._depth = 0
        self._seen: dict[int, int] | None = {}

    @property
    def synchronize(self) -> bool:
        """False within `no_sync`: gradients stay this rank's own."""
        return self._synchronize

    @synchronize.setter
    def synchronize(self, value: bool) -> None:
        self._synchronize = value
        for session in self.sessions:
            session.disarm()

    def read(self, parameter: nn.Parameter, siblings: GuardedParameters) -> None:
        """Within a forward only the parameter's value counts, elsewhere its gradient does too.

        But for the gradient alone a rank does not wait for what the others may never do.
        """
        owner = self.owners.get(id(parameter))
        if owner is None:
            return
        self._note(parameter)
        session, slot = owner
        if slot.due:
            session.finish(slot, self._slots(session, siblings.peek()))
        elif session.open and not session.needs_agreement and not self._computing():
            session.gather([slot])

    def read_all(self, parameters: Iterator[Tensor]) -> None:
        for parameter in parameters:
            owner = self.owners.get(id(parameter))
            if owner is not None:
                session, slot = owner
                if slot.due:
                    session.finish(slot)
                if session.open and not self._computing():
                    session.gather([slot])

    def use(self, parameters: Sequence[nn.Parameter]) -> None:
        """A forward is about to use parameters that it does not look up."""
        for parameter in parameters:
            owner = self.owners.get(id(parameter))
            if owner is not None:
                self._note(parameter)
                session, slot = owner
                if slot.due:
                    session.finish(slot)

    def refresh(self) -> None:
        """Says anew whether readers have anything to wait for."""
        self.busy = self._seen is not None or any(
            session.open or session.pending for session in self.sessions
        )

    @contextmanager
    def forward(self) -> Iterator[None]:
        """The model computes; the first forward that is differentiated sets the priorities."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        if self._seen and not self._depth and torch.is_grad_enabled():
            last = len(self._seen)
            for key, (_, slot) in self.owners.items():
                slot.priority = self._seen.get(key, last)
            self._seen = None
            self.refresh()

    def count_backwards(self, outputs: Any) -> None:
        """Have each backward pass counted that reaches any of the tensors in `outputs`.

        Nested backward passes, as of reentrant checkpoints, do not reach them.
        """
        for output in tree_leaves(outputs):
            if isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(_Count(self))  # type: ignore[no-untyped-call]

    def count(self) -> None:
        """One of the outputs has got its gradient: once for each backward pass."""
        task: int = torch._C._current_graph_task_id()
        if self.synchronize and task != self._task:
            self._task = task
            self.backwards += 1

    def _note(self, parameter: nn.Parameter) -> None:
        if self._seen is not None and self._depth:
            self._seen.setdefault(id(parameter), len(self._seen))

    def _computing(self) -> bool:
        return self._depth > 0 or torch._C._current_graph_task_id() != -1

    def _slots(self, session: "Session", parameters: Iterator[nn.Parameter]) -> Iterator[Slot]:
        for parameter in parameters:
            owner = self.owners.get(id(parameter))
            if owner is not None and owner[0] is session:
                yield owner[1]


class _Count:
    """A hook of an output. It holds on to nothing: Python cannot see cycles through autograd."""

    def __init__(self, watch: Watch) -> None:
        self._watch = weakref.ref(watch)

    def __call__(self, _: Tensor) -> None:
        watch = self._watch()
        if watch is not None:
            watch.count()
