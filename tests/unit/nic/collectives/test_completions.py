"""Tests of the thread that runs completion callbacks."""

import threading
from datetime import timedelta
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slackline.nic import Group, Transfer
from slackline.nic.collectives import _transfer
from slackline.testing import run_ranks
from slackline.wire import DType

LIMIT = timedelta(seconds=30)


@pytest.mark.parametrize("same", [False, True])
def test_a_finalizer_may_add_a_callback_while_another_is_added(
    monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    """Run a finalizer at a fixed call, in place of any call at which a collection may start."""
    started = []

    def body(group: Group) -> None:
        memory = np.zeros(2, np.uint8)
        if group.rank == 1:
            group.barrier(blocking=True)
            for tag in (0, 1):
                group.send(memory.ctypes.data, 1, DType.UINT8, 0, tag, blocking=True)
            return
        ended: SimpleQueue[str] = SimpleQueue()
        transfers: list[Transfer] = [
            group.recv(memory.ctypes.data + tag, 1, DType.UINT8, 1, tag) for tag in (0, 1)
        ]

        class Finalizing(threading.Thread):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                if not started:
                    started.append(self)
                    dropped = transfers[0 if same else 1]
                    dropped.add_done_callback(lambda error: ended.put(f"finalizer {error}"))
                super().__init__(*args, **kwargs)

        with monkeypatch.context() as patch:
            changed = SimpleNamespace(**{**vars(threading), "Thread": Finalizing})
            patch.setattr(_transfer, "threading", changed)
            transfers[0].add_done_callback(lambda error: ended.put(f"first {error}"))
        group.barrier(blocking=True)
        found = {ended.get(timeout=LIMIT.total_seconds()) for _ in range(2)}
        assert found == {"finalizer None", "first None"}
        for transfer in transfers:
            transfer.wait()  # before this rank leaves the group
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("slackline-completions") == 1

    run_ranks(2, body, limit=LIMIT)
    assert started
