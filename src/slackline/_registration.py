"""Makes the name "slackline" known to torch; the backend itself loads at first use."""

from typing import Any

__all__ = ["register"]

NAME = "slackline"
DEVICES = ["cpu", "cuda"]


def register() -> None:
    """Registers the backend with torch.distributed; further calls change nothing.

    torch calls it through its entry point group "torch.backends" while it is itself being imported,
    so nothing here may fail for reasons that concern only the users of slackline.
    """
    from torch import distributed

    if not distributed.is_available() or NAME in distributed.Backend.backend_list:
        return
    distributed.Backend.register_backend(NAME, _create, extended_api=True, devices=DEVICES)


def _create(options: Any, group_options: Any) -> Any:  # torch's types
    from slackline.backend import create

    return create(options, group_options)
