"""Events of operations in torch's profiles, each from the call to the operation's end."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import distributed as dist
from torch.autograd import profiler

from slackline.backend._torch import fast_record

__all__ = ["Facts", "profiling", "recorded"]

Facts = Mapping[str, int | str]
"""Names and values that an event shows; the names must differ from torch's own."""


def profiling() -> bool:
    """Return whether a profiler of torch is running in this process."""
    return profiler._is_profiler_enabled


def recorded(
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
    event = f"slackline:{name}"
    shown = {"bytes": sum(each.numel() * each.element_size() for each in results), **facts}
    if blocking:
        with fast_record(event, results, shown):
            return post()
    with profiler.record_function(event) as record:
        with fast_record(f"{event} posted", results, shown):
            work = post()
        record._call_end_callbacks_on_future(work.get_future())
        return work
