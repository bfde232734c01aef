"""Works whose Python objects live as long as torch's C++ code refers to them."""

import threading
from typing import Any

from torch import distributed as dist

from slackline.backend._torch import TorchGroup, c10d

__all__ = ["held"]


class _Carrier(TorchGroup):
    """A group that hands a Work to C++, so that C++ keeps the Work's Python object alive."""

    def __init__(self) -> None:
        super().__init__(0, 1)
        self.work: Any = None

    def broadcast(self, tensors: Any, opts: Any) -> Any:
        work, self.work = self.work, None
        return work


_carriers = threading.local()


def held(work: dist.Work) -> dist.Work:
    """Return a Work that follows `work` and keeps it alive as long as torch's C++ code holds it."""
    if not hasattr(_carriers, "carrier"):
        _carriers.carrier = _Carrier()
    _carriers.carrier.work = work
    # Python calls C++, and C++ calls the carrier: a Work comes back that holds a Python object.
    kept: dist.Work = dist.ProcessGroup.broadcast(_carriers.carrier, [], c10d.BroadcastOptions())
    return kept
