"""Events of operations in torch's profiles, each from the call to the operation's end."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import distributed as dist
from torch.autograd import profiler
from torch.futures import Future

if TYPE_CHECKING:
    from slackline.nic import Transfer

__all__ = ["Facts", "profiling", "recorded_transfer", "recorded_work"]

Facts = Mapping[str, int | str]
"""Names and values that an event shows; the names must differ from torch's own."""

Posted = TypeVar("Posted")
Handle = TypeVar("Handle", bound="Transfer")


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

    A blocking operation gives one event, "slackline:NAME". An asynchronous operation gives two: an
    event
    "slackline:NAME" from the call to the operation's end, and in it "slackline:NAME posted" for the
    call. The event that ends within the call shows `facts` and the bytes of `results`. If the
    profiler records shapes, the event also shows the shapes and types of `results`.
    """
    return _recorded(name, post, blocking, results, facts, lambda work: work.get_future())


def recorded_transfer(
    name: str,
    post: "Callable[[], Handle]",
    blocking: bool,
    results: Sequence[torch.Tensor],
    facts: Facts,
) -> "Handle":
    """Do the same as `recorded_work` for an operation that `post` posts on the NIC engine."""
    return _recorded(name, post, blocking, results, facts, _end_of)


def _recorded(
    name: str,
    post: Callable[[], Posted],
    blocking: bool,
    results: Sequence[torch.Tensor],
    facts: Facts,
    end_of: "Callable[[Posted], Future[Any]]",
) -> Posted:
    event = f"slackline:{name}"
    shown = {"bytes": sum(each.numel() * each.element_size() for each in results), **facts}
    if blocking:
        with _fast_record(event, results, shown):
            return post()
    with profiler.record_function(event) as record:
        with _fast_record(f"{event} posted", results, shown):
            posted = post()
        record._call_end_callbacks_on_future(end_of(posted))
        return posted


def _end_of(transfer: "Transfer") -> "Future[None]":
    """Return a Future that is completed at the transfer's end, also if the transfer fails."""
    ended: Future[None] = Future()
    transfer.add_done_callback(lambda error: ended.set_result(None))
    return ended


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
