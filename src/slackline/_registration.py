"""The registration of the backend name "slackline" with torch; the backend loads at first use."""

from typing import Any

from slackline._beside import others_beside, put_last, watch_groups
from slackline.env import serves

__all__ = ["register"]

NAME = "slackline"
DEVICES = ["cpu", "cuda"]


def register() -> None:
    """Register the backend with torch.distributed; further calls change nothing.

    torch calls this function through slackline's entry points (`slackline_entry`). With
    SLACKLINE_AS, slackline also serves the groups of the backend named there
    (docs/decisions/0013-programs-that-name-gloo.md). Raises UsageError for a backend that slackline
    cannot serve.
    """
    from torch import distributed

    if not distributed.is_available():
        return
    if NAME not in distributed.Backend.backend_list:
        distributed.Backend.register_backend(NAME, _create, extended_api=True, devices=DEVICES)
        put_last(NAME)
        watch_groups()
    if serves() is not None:
        from slackline._gloo import serve_gloo

        serve_gloo()


def _create(options: Any, group_options: Any) -> Any:  # torch's types
    """Create a slackline process group from torch's options."""
    from slackline.backend import create

    others = others_beside(options)
    if others is None:
        return create(options, group_options)
    from slackline.backend import create_beside  # Most groups have one backend.

    return create_beside(others, options, group_options)
