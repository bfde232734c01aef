"""The process group that torch sees, put together from its families of operations."""

from collections.abc import Callable
from datetime import timedelta

from slackline.backend._identity import NAME
from slackline.backend._membership import Agreement
from slackline.backend._moves import Moves
from slackline.backend._point_to_point import PointToPoint
from slackline.backend._reductions import Reductions
from slackline.backend._torch import Store, left_alone_by_compile
from slackline.nic import Group

__all__ = ["SlacklineGroup"]


@left_alone_by_compile
class SlacklineGroup(Reductions, Moves, PointToPoint):
    """torch's ProcessGroup on a nic's Group.

    `on_end` is called once, when the group has ended. Further operations raise ClosedError.
    """

    stands_for = NAME
    """The backend that torch takes the group for."""

    def __init__(self, nic: Group, store: Store, on_end: Callable[[], None]) -> None:
        super().__init__(nic, store)
        self._on_end = on_end
        self._ended = False
        self.agreement: Agreement | None = None
        """Who can shrink the group, and where they meet; None if it was not made for torch."""

    @property
    def nic(self) -> Group:
        """The nic's side of the group."""
        return self._nic

    def shutdown(self) -> None:
        """End the group in good order; blocks until what was posted is flushed. Called by
        destroy_process_group.
        """
        if self._ended:
            return
        self._ended = True
        try:
            if self._lane is not None:
                self._lane.close()
            self._nic.close()
        finally:
            self._unheard.clear()
            self._on_end()

    def abort(self) -> None:
        """End the group now; pending operations fail on every rank."""
        if self._ended:
            return
        self._ended = True
        try:
            self._nic.abort("the process group was aborted")
            if self._lane is not None:
                self._lane.close()
            self._nic.close(timedelta())  # what was posted and has not begun is not waited for
        finally:
            self._unheard.clear()
            self._on_end()
