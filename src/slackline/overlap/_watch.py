"""What the parts of one wrapped model share: who owns a parameter, and what the model is doing."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from slackline.overlap._guard import GuardedParameters
from slackline.overlap._slot import Slot

if TYPE_CHECKING:
    from slackline.overlap._session import Session

__all__ = ["Watch"]


class Watch:
    """Decides what a reader of a parameter must wait for; records the order of first use."""

    def __init__(self) -> None:
        self.busy = True
        self.synchronize = True
        """False within `no_sync`: gradients stay this rank's own."""
        self.sessions: list[Session] = []
        self.owners: dict[int, tuple[Session, Slot]] = {}
        """By the parameter's id."""
        self._depth = 0
        self._seen: dict[int, int] | None = {}

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
