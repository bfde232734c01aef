"""What is done to processes: killed, stopped, or run for a part of the time."""

import os
import signal
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from slackline.faults import RankState

__all__ = ["Processes", "Ranks", "duty"]

Processes = Callable[[], Mapping[int, Collection[int]]]
"""The process ids of each rank that is there; asked again while faults are in force."""

_PERIOD_NS = 20_000_000
"""A rank that is twice as slow runs for the first half of every 20 ms."""

_MEET_NS = 100_000_000
"""How often new processes are looked for while a fault stays the same."""


class Ranks:
    """Keeps processes in the state that the faults want.

    A process is held by a descriptor: a signal never reaches another one with the same number.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._handles: dict[tuple[int, int], int] = {}
        """By rank and process id."""
        self._stopped: set[tuple[int, int]] = set()
        self._states: Mapping[int, RankState] = {}
        self._met_ns = 0

    def apply(self, now_ns: int, states: Mapping[int, RankState]) -> int | None:
        """Bring ranks to these states; returns when to do so again, None if not before a change."""
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
        """Let every rank run again."""
        for key in list(self._stopped):
            self._send(key, signal.SIGCONT)
        for handle in self._handles.values():
            os.close(handle)
        self._stopped.clear()
        self._handles.clear()

    def _meet(self) -> None:
        for rank, pids in self._processes().items():
            for pid in pids:
                if (rank, pid) not in self._handles:
                    with suppress(ProcessLookupError):  # it has ended: there is nothing to hold
                        self._handles[rank, pid] = os.pidfd_open(pid)

    def _send(self, key: tuple[int, int], number: signal.Signals) -> None:
        try:
            signal.pidfd_send_signal(self._handles[key], number)
        except ProcessLookupError:  # it has ended by itself
            os.close(self._handles.pop(key))
            self._stopped.discard(key)


def duty(now_ns: int, factor: float) -> tuple[bool, int]:
    """Whether a rank that is `factor` times slower stands still now, and until when."""
    begin_ns = now_ns - now_ns % _PERIOD_NS
    stop_ns = begin_ns + round(_PERIOD_NS / factor)
    return (False, stop_ns) if now_ns < stop_ns else (True, begin_ns + _PERIOD_NS)
