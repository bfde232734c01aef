"""The posted reductions of one optimizer's gradients, until each has been awaited."""

from collections.abc import Callable, Sequence

import torch

from slackline.errors import UsageError
from slackline.overlap._recorder import Recorder
from slackline.overlap.reduction._gradient_group import Divisor, GradientGroup, Posting
from slackline.overlap.reduction._parameter_state import ParameterState

__all__ = ["Reductions"]


class Reductions:
    """The reductions that have been posted and not been awaited yet."""

    def __init__(self, recorder: Recorder) -> None:
        """Create an object without reductions; `recorder` receives each post."""
        self.divisor: Divisor | None = None
        """The number that divides the results of the reductions that are posted from now on."""
        self._recorder = recorder
        self._postings: dict[ParameterState, Posting] = {}
        self.of: Callable[[ParameterState], Posting | None] = self._postings.get
        """The function from a gradient to the reduction that owns its buffer now, or None."""

    def post(self, group: GradientGroup, members: Sequence[ParameterState], parity: int) -> None:
        """Post the reduction of a group of gradients, none of which is in flight.

        See `GradientGroup.post` for the arguments.
        """
        posting = group.post(members, parity, self.divisor)
        self._postings.update(dict.fromkeys(members, posting))
        self._recorder.posted(
            group.nbytes, len(group.states), group=group.key, pending=posting.pending
        )

    def end(self, posting: Posting, *, show: bool) -> None:
        """Block until a reduction has ended, and take its result (see `ParameterState.reduced`).

        The result is divided by the reduction's divisor, if there is one.

        Nothing happens if its result has been taken before. Raises the reduction's error, or
        UsageError if a gradient was written to meanwhile.
        """
        posting.wait()
        if self._postings.get(posting.states[0]) is not posting:
            return
        if posting.divisor is not None:
            with torch.no_grad():
                sums = [state.values for state in posting.states]
                torch._foreach_div_(sums, posting.divisor.wait())
        written = None
        with torch._C.DisableTorchFunctionSubclass():  # watched parameters report their reads
            for state in posting.states:
                del self._postings[state]
                if state.reduced(show=show):
                    written = state
        posting.group.learn(posting)
        if written is not None:
            raise UsageError(
                f"the gradient of {written.name!r} was written to while it was being reduced: "
                "read it through the model or the optimizer, or call synchronize() before"
            )

    def in_flight(self) -> list[Posting]:
        """Return the reductions that have been posted and not been awaited yet, oldest first."""
        return list(dict.fromkeys(self._postings.values()))

    def done(self) -> bool:
        """Return whether no reduction uses the gradients' or the divisor's memory any more."""
        return all(posting.done() for posting in self._postings.values()) and (
            self.divisor is None or self.divisor.done()
        )

    def settle(self) -> None:
        """Block until no reduction uses the divisor's memory any more."""
        if self.divisor is not None:
            self.divisor.settle()
