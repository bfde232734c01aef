"""Exact sleeps, which stand for computations, so that many ranks fit on few cores."""

from __future__ import annotations

import ctypes
import os
import time

_SET_TIMER_SLACK = 29
"""The prctl option for timer slack: how much later than requested a sleep may end (50 us)."""


def sharpen_timers() -> None:
    """Let sleeps of this thread, and of threads that it starts, end when they are due."""
    ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, 1, 0, 0, 0)


def go_before_others() -> bool:
    """Give this thread, and threads that it starts, priority over all ordinary programs.

    Each host of a lab stands for a machine of its own, so other programs on this machine must not
    be measured. Returns False if a container forbids the priority.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return False
    return True


def sleep_until(moment_ns: int) -> None:
    """Sleep until a time of CLOCK_MONOTONIC, in ns; return at once if that time has passed."""
    while (left_ns := moment_ns - time.monotonic_ns()) > 0:
        time.sleep(left_ns / 1e9)
