"""What is done to processes: killed, stopped, or run for a part of the time."""

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress

from slackline.faults import RankState

__all__ = ["Processes", "Ranks"]

Processes = Callable[[], Mapping[int, int]]
"""The process id of each rank that is there; asked again whenever something is to be done."""

_PERIOD_NS = 20_000_000
"""A rank that is twice as slow runs for the first half of every 20 ms."""


class Ranks:
    """Keeps processes in the state that the faults want.

    A process is held by a descriptor: a signal never reaches another one with the same number.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._handles: dict[int, tuple[int, int]] = {}
        self._stopped: set[int] = set()
        self._killed: set[int] = set()

    def apply(self, now_ns: int, states: Mapping[int, RankState]) -> int | None:
        """Bring ranks to these states; returns when to do so again, None if not before a change."""
        self._meet()
        again = None
        for rank in self._handles:
            state = states.get(rank)
            stop = False
            if state is not None and state.action == "kill":
                if rank not in self._killed:
                    self._killed.add(rank)
                    self._send(rank, signal.SIGKILL)
                continue
            if state is not None and state.action == "stop":
                stop = True
            elif state is not None:
                stop, until_ns = duty(now_ns, state.factor)
                again = until_ns if again is None else min(again, until_ns)
            if stop != (rank in self._stopped):
                self._send(rank, signal.SIGSTOP if stop else signal.SIGCONT)
                (self._stopped.add if stop else self._stopped.discard)(rank)
        return again

    def close(self) -> None:
        """Let every rank run again."""
        for rank in self._stopped:
            self._send(rank, signal.SIGCONT)
        for _, handle in self._handles.values():
            os.close(handle)
        self._stopped.clear()
        self._handles.clear()

    def _meet(self) -> None:
        for rank, pid in self._processes().items():
            known = self._handles.get(rank)
            if known is not None and known[0] == pid:
                continue
            with suppress(ProcessLookupError):  # it has ended: there is nothing to hold
                self._handles[rank] = (pid, os.pidfd_open(pid))
                self._stopped.discard(rank)
                self._killed.discard(rank)
            if known is not None:
                os.close(known[1])

    def _send(self, rank: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has ended by itself
            signal.pidfd_send_signal(self._handles[rank][1], number)


def duty(now_ns: int, factor: float) -> tuple[bool, int]:
    """Whether a rank that is `factor` times slower stands still now, and until when."""
    begin_ns = now_ns - now_ns % _PERIOD_NS
    stop_ns = begin_ns + round(_PERIOD_NS / factor)
    return (False, stop_ns) if now_ns < stop_ns else (True, begin_ns + _PERIOD_NS)
