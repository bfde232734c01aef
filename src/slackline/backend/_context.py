"""One engine for all groups of a process: opened with the first, closed with the last."""

import atexit
import threading
from collections.abc import Callable
from datetime import timedelta

from slackline.backend._group import SlacklineGroup
from slackline.backend._torch import BackendOptions
from slackline.env import Environment
from slackline.errors import UsageError
from slackline.nic import NativeNic, Nic, NicOptions

__all__ = ["Context", "open_native"]


class Context:
    """What torch calls to create a group. It owns the engine and counts who uses it."""

    def __init__(self, open_nic: Callable[[NicOptions | None], Nic]) -> None:
        """`open_nic` gives the engine; its argument is what the first group's `pg_options` were."""
        self._open_nic = open_nic
        self._lock = threading.Lock()
        self._nic: Nic | None = None
        self._options: NicOptions | None = None
        self._users = 0

    def __call__(self, opts: BackendOptions, options: NicOptions | None = None) -> SlacklineGroup:
        """Create a group from torch's `_DistributedBackendOptions`; `options` come from
        `pg_options`.

        Blocks until all ranks of the group are there, or raises TimeoutError.
        """
        timeout: timedelta = opts.timeout
        nic = self._acquire(options)
        try:
            group = nic.open_group(opts.store, opts.group_rank, opts.group_size, timeout=timeout)
        except BaseException:
            self._release()
            raise
        return SlacklineGroup(group, opts.store, timeout, self._release)

    def _acquire(self, options: NicOptions | None) -> Nic:
        with self._lock:
            if self._nic is None:
                self._nic = self._open_nic(options)
                self._options = options
                atexit.register(self._close)
            elif options is not None and options != self._options:
                raise UsageError(
                    f"the engine runs with {self._options}; a later group cannot ask for {options}"
                )
            self._users += 1
            return self._nic

    def _release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users > 0:
                return
        self._close()

    def _close(self) -> None:
        with self._lock:
            nic, self._nic = self._nic, None
            self._users = 0
        if nic is not None:
            atexit.unregister(self._close)
            nic.close()


def open_native(options: NicOptions | None) -> Nic:
    """Open the native engine with these options, or with what the environment asks for."""
    return NativeNic(options or NicOptions.from_env(Environment.read()))
