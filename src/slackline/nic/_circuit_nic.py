"""Devices of `slackline.circuit` for groups: the one door of this room to that one."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from slackline.env import NICS, cache_folder
from slackline.errors import UsageError
from slackline.nic._device import Device, Post, RingHost
from slackline.wire import DType

if TYPE_CHECKING:
    from slackline.circuit import RingDevice

__all__ = ["Devices"]

_NO_JOB = 0
"""The device is inside the engine: the code that keeps strangers out is the rails' matter."""


class Devices:
    """Opens the devices of one kind, "twin" or "circuit", for a nic's groups."""

    def __init__(self, kind: str) -> None:
        """Raises UsageError when the extra or a tool is missing.

        The first circuit on a machine is compiled here, which takes up to minutes; other processes
        wait for it.
        """
        if kind not in NICS or kind == "software":
            raise UsageError(f"a device is one of {', '.join(NICS[1:])}, not {kind!r}")
        self.kind = kind
        from slackline.circuit import RingOptions

        self._options = RingOptions()
        with _alone(kind):
            self._open(rank=0, size=2, epoch=1, plan=1).close()

    @property
    def payload_bytes(self) -> int:
        """The longest payload that they take."""
        return self._options.payload_bytes

    def ring(self, rank: int, size: int, epoch: int, plan: int) -> Device:
        """A ring NIC for this rank of a group; `plan` is the number of its plan in frames."""
        return RingHost(
            lambda: self._open(rank, size, epoch, plan), _post, self._options.operations
        )

    def _open(self, rank: int, size: int, epoch: int, plan: int) -> RingDevice:
        from slackline.circuit import open_ring_device

        return open_ring_device(
            self.kind,
            self._options,
            rank=rank,
            ranks=size,
            job=_NO_JOB,
            epoch=epoch,
            plan_id=plan,
        )


def _post(nic: RingDevice, post: Post) -> None:
    from slackline.circuit import RingOperation

    tag, dtype, total, frame_bytes, _, address = post
    nic.post(
        RingOperation(
            tag=tag,
            dtype=DType(dtype),
            total=total,
            frame_bytes=frame_bytes,
            source=address,
            target=address,
        )
    )


@contextmanager
def _alone(kind: str) -> Iterator[None]:
    """One process at a time compiles; the others find what it made."""
    if kind != "circuit":
        yield
        return
    folder = cache_folder() / "circuits"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "building.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
