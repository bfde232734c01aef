"""The properties that torch asks of a process group: names, devices, abilities."""

from datetime import timedelta
from typing import Any

import torch

from slackline.backend._torch import Store, TorchGroup, backend_options, excluded_from_compile
from slackline.errors import UsageError

__all__ = ["NAME", "Identity"]

NAME = "slackline"


@excluded_from_compile
class Identity(TorchGroup):
    """A ProcessGroup that is its own backend and stores its name and description.

    torch finds groups by name (functional collectives, DeviceMesh, FSDP2, destroy). torch calls the
    accessors by their Python and their C++ names, so the class has both spellings.
    """

    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._store = store
        self._name = ""
        self._desc = ""
        self._timeout: timedelta | None = None
        self._group_timeout = timeout

    def name(self) -> str:
        return NAME

    def getBackendName(self) -> str:  # noqa: N802
        return NAME

    def _get_backend_name(self) -> str:
        return NAME

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        return self._name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._desc

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802
        self._desc = desc

    def _set_group_desc(self, desc: str) -> None:
        self._desc = desc

    @property
    def group_desc(self) -> str:
        return self._desc

    def get_group_store(self) -> Store:
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        return [torch.device(kind) for kind in kinds]

    def _get_backend(self, device: torch.device) -> Any:
        if torch.device(device).type not in ("cpu", "cuda"):
            raise RuntimeError(f"No backend type associated with device type {device}")
        return self

    @property
    def options(self) -> Any:
        """The backend's options, from which torch reads the timeout."""
        return backend_options(NAME, self.default_timeout)

    @property
    def default_timeout(self) -> timedelta:
        """The timeout of operations whose call gives no timeout."""
        return self._timeout or self._group_timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later operations whose call gives no timeout.

        Raises UsageError unless the timeout is positive.
        """
        if timeout <= timedelta():
            raise UsageError(f"a timeout must be positive, not {timeout}")
        self._timeout = timeout

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.set_timeout(timeout)

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        pass

    def _enable_collectives_timing(self) -> None:
        pass
