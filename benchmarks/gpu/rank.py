"""A rank of a stage, with its device, its place in the group, and the file of its figures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

if TYPE_CHECKING:
    from slackline.backend.staging import Device

__all__ = ["Rank"]

_LIMIT_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Rank:
    """A rank of a stage. A figure that it notes is in the file at once, whatever happens later."""

    stage: str
    rank: int
    size: int
    folder: Path
    """A folder of this stage's ranks, empty at the beginning."""
    results: Path
    cpu: bool
    """Whether the stage runs on the CPU, with tiny sizes: this only shows that its code runs."""

    def note(self, figure: str, **values: str | float) -> None:
        """Append a figure to the results."""
        self._write(figure=figure, values=values)

    def skip(self, figure: str, reason: str) -> None:
        """Append to the results why a figure was not measured."""
        self._write(figure=figure, skipped=reason)

    def _write(self, **fields: object) -> None:
        with self.results.open("a") as file:  # One write of one line: ranks write at once.
            file.write(f"{json.dumps({'stage': self.stage, 'rank': self.rank, **fields})}\n")

    @property
    def device(self) -> torch.device:
        """The device of the stage's tensors: the only GPU, which all ranks share, or the CPU."""
        return torch.device("cpu") if self.cpu else torch.device("cuda", 0)

    def use_device(self) -> None:
        """Make the device the current one of this thread; init_device_mesh takes it then."""
        if not self.cpu:
            torch.cuda.set_device(self.device)

    def accelerator(self) -> Device:
        """Return the object that copies tensors of the device; on the CPU one made of threads."""
        if self.cpu:
            from slackline.testing.thread_device import ThreadDevice

            return ThreadDevice()
        from slackline.backend.staging import device_of

        found = device_of(self.device)
        assert found is not None
        return found

    @contextmanager
    def staged(self) -> Iterator[None]:
        """Have groups that open in the context copy tensors of the device, as they do on a GPU.

        On the CPU, threads are the device's streams, and the host waits wherever a stream would.
        """
        if not self.cpu:
            yield
            return
        from slackline.backend import SlacklineGroup
        from slackline.testing.thread_device import HostDevice

        threads = HostDevice()
        defaults = SlacklineGroup.__init__.__kwdefaults__
        before, defaults["device_of"] = defaults["device_of"], lambda device: threads
        try:
            yield
        finally:
            defaults["device_of"] = before
            threads.close()

    def synchronize(self) -> None:
        """Block until all work of the device is done."""
        if not self.cpu:
            torch.cuda.synchronize()

    def join(self, backend: str = "slackline", *, limit_s: float = _LIMIT_S) -> Any:
        """Open the default group of the stage's ranks; return `torch.distributed`."""
        dist.init_process_group(
            backend,
            init_method=f"file://{self.folder / 'store'}",
            rank=self.rank,
            world_size=self.size,
            timeout=timedelta(seconds=limit_s),
        )
        return dist
