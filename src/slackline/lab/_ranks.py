"""Faults of ranks: processes are killed, stopped, or slowed by stopping them part of the time."""

import os
import signal
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from slackline.faults import RankState

__all__ = ["Processes", "Ranks", "duty"]

Processes = Callable[[], Mapping[int, Collection[int]]]
"""A function that returns the process ids of each rank; called repeatedly while faults last."""

_PERIOD_NS = 20_000_000
"""The period of slowing: a rank that is twice as slow runs for the first half of every 20 ms."""

_MEET_NS = 100_000_000
"""The interval at which new processes are looked for while a fault lasts unchanged."""


class Ranks:
    """The processes of all ranks, which faults kill, stop, slow and continue.

    Each process is addressed through a pidfd, so that a signal never reaches a later process with
    the same number.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._handles: dict[tuple[int, int], int] = {}
        """The pidfds by rank and process id."""
        self._stopped: set[tuple[int, int]] = set()
        self._states: Mapping[int, RankState] = {}
        self._met_ns = 0

    def apply(self, now_ns: int, states: Mapping[int, RankState]) -> int | None:
        """Kill, stop or continue the ranks' processes as `states` requires at plan time `now_ns`.

        Returns the time at which the caller must call again, or None if no further call is needed
        until `states` changes.
        """
        if states and (states != self._states or now_ns - self._met_ns >= _MEET_NS):
            self._meet()
            self._met_ns = now_ns
        self._states = dict(states)
        again = [now_ns + _MEET_NS] if states else []
        for key in list(self._handles):
            state = states.get(key[0])
            if state is not None and state.action == "kill":
                self._send(key, signal.SIGKILL)
                continue
            stop = state is not None
            if state is not None and state.action == "slow":
                stop, until_ns = duty(now_ns, state.factor)
                again.append(until_ns)
            if stop != (key in self._stopped):
                (self._stopped.add if stop else self._stopped.discard)(key)
                self._send(key, signal.SIGSTOP if stop else signal.SIGCONT)
        return min(again, default=None)

    def close(self) -> None:
        """Let every stopped process run again and close all pidfds."""
        for key in list(self._stopped):
            self._send(key, signal.SIGCONT)
        for handle in self._handles.values():
            os.close(handle)
        self._stopped.clear()
        self._handles.clear()

    def _meet(self) -> None:
        """Open a pidfd for each new process of the ranks."""
        for rank, pids in self._processes().items():
            for pid in pids:
                if (rank, pid) not in self._handles:
                    with suppress(ProcessLookupError):  # The process has ended already.
                        self._handles[rank, pid] = os.pidfd_open(pid)

    def _send(self, key: tuple[int, int], number: signal.Signals) -> None:
        try:
            signal.pidfd_send_signal(self._handles[key], number)
        except ProcessLookupError:  # The process has ended by itself.
            os.close(self._handles.pop(key))
            self._stopped.discard(key)


def duty(now_ns: int, factor: float) -> tuple[bool, int]:
    """Return whether a rank slowed by `factor` is stopped at `now_ns`, and until when."""
    begin_ns = now_ns - now_ns % _PERIOD_NS
    stop_ns = begin_ns + round(_PERIOD_NS / factor)
    return (False, stop_ns) if now_ns < stop_ns else (True, begin_ns + _PERIOD_NS)
