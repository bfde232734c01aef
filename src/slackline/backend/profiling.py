"""Events of operations in torch's profiles, and the question whether a tool of torch records."""

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import distributed as dist
from torch.autograd import profiler
from torch.futures import Future

if TYPE_CHECKING:
    from slackline.nic import Transfer

__all__ = ["Facts", "observed", "profiling", "recorded_transfer", "recorded_work"]

Facts = Mapping[str, int | str]
"""Names and values that an event shows; the names must differ from torch's own."""

Handle = TypeVar("Handle", bound="Transfer")


def _global_callbacks() -> Callable[[], bool]:
    """Return torch's C++ function at::hasGlobalCallbacks, which has no name in Python.

    For a torch without it, return a function that always returns False: an execution trace then
    needs a profiler beside it to show operations.
    """
    try:
        found = ctypes.PyDLL(torch._C.__file__)["_ZN2at18hasGlobalCallbacksEv"]
    except AttributeError:
        return lambda: False
    found.argtypes = []
    found.restype = ctypes.c_bool
    return found


observed = _global_callbacks()
"""A function that returns whether a tool records torch's operators in all threads of the process.

ExecutionTraceObserver does, and so do profiles on demand. `profiling` knows torch.profiler.
"""


def profiling() -> bool:
    """Return whether a profiler of torch is running in this process."""
    return profiler._is_profiler_enabled


def recorded_work(
    name: str,
    post: Callable[[], dist.Work],
    blocking: bool,
    results: Sequence[torch.Tensor],
    facts: Facts,
) -> dist.Work:
    """Call `post`, which posts an operation, and record the operation in torch's profile.

    A blocking operation gives one event, "slackline:NAME". An asynchronous operation gives two:
    "slackline:NAME" from the call to the operation's end, and in it "slackline:NAME posted" for the
    call. The event that ends within the call shows `facts` and the bytes of `results`. If the
    profiler records shapes, the event also shows the shapes and types of `results`.
    """
    event = f"slackline:{name}"
    shown = _shown(results, facts)
    if blocking:
        with _fast_record(event, results, shown):
            return post()
    with profiler.record_function(event) as record:
        with _fast_record(f"{event} posted", results, shown):
            work = post()
        end = _EventEnd(record)
        work.get_future().add_done_callback(end)
        work.end_event = end  # type: ignore[attr-defined]
        return work


class _EventEnd:
    """The end of an event in torch's profile, which comes once.

    torch may crash if an event ends after its profile, while another profile is running. The future
    of an operation is completed by a thread of its own, so that a wait for the operation can return
    earlier, and the caller can end the profile. The wait therefore ends the event itself. torch
    takes an event for asynchronous if it ends on another thread than it has begun on.
    """

    def __init__(self, record: profiler.record_function) -> None:
        self._lock = threading.Lock()
        self._begun_on = threading.get_ident()
        self._future: Future[None] = Future()
        record._call_end_callbacks_on_future(self._future)

    @property
    def ended(self) -> bool:
        """Whether the event has ended."""
        with self._lock:
            return self._future.done()

    def __call__(self, _: object = None) -> None:
        """End the event, unless it has ended; block while another thread ends it."""
        if threading.get_ident() != self._begun_on:
            self._end()
        elif not self.ended:
            thread = threading.Thread(target=self._end, name="slackline-event", daemon=True)
            thread.start()
            thread.join()

    def _end(self) -> None:
        with self._lock:
            if not self._future.done():
                self._future.set_result(None)


def recorded_transfer(
    name: str,
    post: "Callable[[], Handle]",
    blocking: bool,
    results: Sequence[torch.Tensor],
    facts: Facts,
) -> "Handle":
    """Call `post`, which posts an operation on the NIC engine, and record the call.

    The event is "slackline:NAME" for a blocking operation, else "slackline:NAME posted", and shows
    the same values as in `recorded_work`. The end of an operation that goes on is not recorded:
    gradients and messages are often under way when a profile ends, and torch 2.13 may crash if an
    event ends while torch exports the profile.
    """
    event = f"slackline:{name}" if blocking else f"slackline:{name} posted"
    with _fast_record(event, results, _shown(results, facts)):
        return post()


def _shown(results: Sequence[torch.Tensor], facts: Facts) -> Facts:
    return {"bytes": sum(each.numel() * each.element_size() for each in results), **facts}


def _fast_record(
    name: str, tensors: Sequence[torch.Tensor], facts: Facts
) -> AbstractContextManager[object]:
    """Return a context that records a user event in torch's profile.

    The event shows `facts`, and the shapes of `tensors` if the profiler records shapes.
    """
    record: Any = torch._C._profiler
    found: AbstractContextManager[object] = record._RecordFunctionFast(
        name, list(tensors), {**facts, "scope": "user_scope"}
    )
    return found
