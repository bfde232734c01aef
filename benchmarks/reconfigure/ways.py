"""The ways in which the default group of this process can get other members."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from _harness.ranks import Place
from torch import distributed as dist

from slackline import elastic
from slackline.elastic._handle import open_door

__all__ = ["TIMEOUT", "WAYS", "Change", "Way"]

TIMEOUT = timedelta(seconds=60)
Connect = Callable[[], dist.Store]
"""A function that returns a connection to the store at which groups are opened anew."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of members, as one of the new members sees it."""

    number: int
    rank: int
    handles: tuple[str, ...]
    """The handles of the new members in rank order; empty strings if their way needs none."""


class Way(Protocol):
    """A way to change the members of the default group."""

    def handle(self) -> str:
        """Make this process ready for its next change; return its handle for the others."""
        ...

    def change(self, change: Change) -> None:
        """Make a change, of which this process is a member; block until the group has changed."""
        ...

    def leave(self) -> None:
        """Be as a process that comes new, with no connection to the others."""
        ...


class Reconfigures:
    """slackline's call for changes of members."""

    def __init__(self, backend: str, place: Place, connect: Connect) -> None:
        pass

    def handle(self) -> str:
        return elastic.get_handle()

    def change(self, change: Change) -> None:
        elastic.reconfigure(str(change.number), change.handles, timeout=TIMEOUT)

    def leave(self) -> None:
        _destroy()
        open_door().kept = {}  # Else the process would keep its connection to the others' store.


class OpensAnew:
    """The end of the group, and the opening of another one at a TCPStore."""

    def __init__(self, backend: str, place: Place, connect: Connect) -> None:
        self._backend, self._connect = backend, connect
        self._store: dist.Store | None = None

    def handle(self) -> str:
        return ""

    def change(self, change: Change) -> None:
        _destroy()
        if self._store is None:
            self._store = self._connect()
        dist.init_process_group(
            self._backend,
            store=dist.PrefixStore(f"{change.number}", self._store),
            rank=change.rank,
            world_size=len(change.handles),
            timeout=TIMEOUT,
        )

    def leave(self) -> None:
        _destroy()
        self._store = None


class TorchsCall:
    """torch's call for changes of members, of torch 2.14 and later, with a backend that has it.

    The handle of a process is another one after each change.
    """

    def __init__(self, backend: str, place: Place, connect: Connect) -> None:
        self._backend, self._place, self._connect = backend, place, connect
        self._torch: Any = dist

    def handle(self) -> str:
        if not dist.is_initialized():
            self._torch.init_process_group(
                self._backend,
                store=self._connect(),
                rank=self._place.rank,
                world_size=self._place.size,
                timeout=TIMEOUT,
                enable_reconfigure=True,
            )
        handle: str = self._torch._get_reconfigure_handle()
        return handle

    def change(self, change: Change) -> None:
        self._torch._reconfigure(change.number, list(change.handles), timeout=TIMEOUT).wait()

    def leave(self) -> None:
        _destroy()


def _destroy() -> None:
    """Leave the default group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


WAYS: dict[str, Callable[[str, Place, Connect], Way]] = {
    "reconfigure": Reconfigures,
    "opened anew": OpensAnew,
    "torch": TorchsCall,
}
