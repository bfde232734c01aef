"""Makes the name "slackline" known to torch; the backend itself loads at first use."""

from typing import Any

from slackline.env import serves

__all__ = ["register"]

NAME = "slackline"
DEVICES = ["cpu", "cuda"]


def register() -> None:
    """Register the backend with torch.distributed; further calls change nothing.

    torch calls it through its entry point group "torch.backends" while it is itself being imported,
    so nothing here may fail for reasons that concern only the users of slackline. With SLACKLINE_AS
    slackline also serves that backend's groups (docs/decisions/0013-programs-that-name-gloo.md).
    Raises UsageError for a backend that cannot be served.
    """
    from torch import distributed

    if not distributed.is_available():
        return
    if NAME not in distributed.Backend.backend_list:
        distributed.Backend.register_backend(NAME, _create, extended_api=True, devices=DEVICES)
    if serves() is not None:
        from slackline._gloo import serve_gloo

        serve_gloo()


def _create(options: Any, group_options: Any) -> Any:  # torch's types
    from slackline.backend import create

    return create(options, group_options)
