"""The facts about a wrapped model that the reducers of its optimizers and its readers share."""

from slackline.overlap.reduction._watched_parameters import WatchedParameters

__all__ = ["ModelState"]


class ModelState:
    """The model's passes so far, and whether a read of a parameter may have to wait."""

    def __init__(self, watched: WatchedParameters) -> None:
        self.watched = watched
        """The parameters whose reads without a lookup are reported."""
        self.synchronize = True
        """True if gradients are reduced; False within `no_sync`."""
        self.backwards = 0
        """The backward passes so far that reached an output of the wrapper's forward."""
        self.busy = False
        """True if a read must be reported: it may have to wait, or its order is recorded."""
        self._busy: set[object] = set()

    def set_busy(self, who: object, busy: bool) -> None:
        """Record that `who`, a reducer or a reader, must or need not learn of the next reads."""
        if busy:
            self._busy.add(who)
        else:
            self._busy.discard(who)
        self.busy = bool(self._busy)
