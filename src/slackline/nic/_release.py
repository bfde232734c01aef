"""The release of native objects before the interpreter ends.

torch's C++ code keeps some Python objects for longer than the interpreter: a process group by the
caches of DTensor or by a tensor's hook, the Work of a functional collective that nobody waited for.
A native object of the engine that such an object refers to would outlive the interpreter too, and
nanobind would print it as leaked.
"""

import gc
import os

from slackline.nic._group import NativeGroup
from slackline.nic.collectives import NativeCompletionQueue, NativeTransfer

__all__ = ["release_native_objects"]

_PROCESS = os.getpid()
_HOLDERS = (NativeGroup, NativeTransfer, NativeCompletionQueue)
"""The classes through which all other objects reach an engine."""


def release_native_objects() -> None:
    """Have all groups, transfers and queues of closed engines forget their native objects.

    In a forked child the native objects belong to the parent and stay.
    """
    if os.getpid() != _PROCESS:
        return
    gc.unfreeze()  # The list below has no frozen objects.
    for each in gc.get_objects():
        if type(each) in _HOLDERS:
            each.release()
