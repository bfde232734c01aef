"""Operations in torch's profiles: an event from the call to the end, with what it was about."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import distributed as dist
from torch.autograd import profiler

from slackline.backend._torch import fast_record

__all__ = ["Facts", "profiling", "recorded"]

Facts = Mapping[str, int | str]
"""Names and values that an event shows; names of torch's own must not be among them."""


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
    """Post, with the operation's time in torch's profile.

    A blocking operation is one event, "slackline:NAME". Another one is such an event from the call
    to its end, wherever that is, and within it one of the call, "slackline:NAME posted". The event
    that ends within the call shows `facts`, the bytes of `results` and, where the profiler was
    asked to record shapes, their shapes and types.
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
