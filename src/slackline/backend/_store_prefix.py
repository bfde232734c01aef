"""A fresh prefix of keys in the store for each start of a group, free of values of earlier starts.

torchrun restarts ranks with the same store, so a key may still hold a value of a dead process. Each
process therefore chooses a random name, and rank 0's name becomes the prefix:

    rank r                                       rank 0
    rank/r = [r's name, ""]             ──>      reads rank/r, which may be old
                                        <──      to/<r's name> = [rank 0's name, false]
    rank/r = [r's name, rank 0's name]  ──>      a rank that answers with rank 0's name is alive
                                        <──      to/<r's name> = [rank 0's name, true],
                                                 once all ranks are alive
"""

import json
import secrets
import time
from datetime import timedelta

from slackline.backend._torch import Store
from slackline.errors import TimeoutError

__all__ = ["agree_on_prefix"]

_POLL_S, _MOST_POLL_S = 0.002, 0.02
"""The first and the longest pause between two reads of the store, which many ranks share."""


def agree_on_prefix(store: Store, rank: int, size: int, timeout: timedelta) -> str:
    """Agree with all ranks on a fresh key prefix, and return it.

    Blocks until every rank has made the call. If a rank is missing, the wait ends with the store's
    own timeout error, or with TimeoutError if an earlier process of that rank has left values in
    the store.
    """
    mine = secrets.token_hex(8)
    if size == 1:
        return f"slackline/life/{mine}"
    deadline_s = time.monotonic() + timeout.total_seconds()
    leader = _lead(store, mine, size, deadline_s) if rank == 0 else None
    return f"slackline/life/{leader or _follow(store, mine, rank, deadline_s)}"


def _lead(store: Store, mine: str, size: int, deadline_s: float) -> str:
    told: dict[int, str] = {}
    names: dict[int, str] = {}
    pause_s = _POLL_S
    while True:
        for peer in range(1, size):
            if peer in names:
                continue
            name, heard = json.loads(store.get(f"slackline/rank/{peer}"))
            if heard == mine:
                names[peer] = name
            elif name != told.get(peer):
                store.set(f"slackline/to/{name}", json.dumps([mine, False]))
                told[peer] = name
        missing = next((peer for peer in range(1, size) if peer not in names), None)
        if missing is None:
            break
        pause_s = _wait(0, missing, deadline_s, pause_s)
    for name in names.values():
        store.set(f"slackline/to/{name}", json.dumps([mine, True]))
    return mine


def _follow(store: Store, mine: str, rank: int, deadline_s: float) -> str:
    heard, pause_s = "", _POLL_S
    store.set(f"slackline/rank/{rank}", json.dumps([mine, heard]))
    while True:
        leader: str
        leader, all_here = json.loads(store.get(f"slackline/to/{mine}"))
        if all_here:
            return leader
        if leader != heard:
            heard = leader
            store.set(f"slackline/rank/{rank}", json.dumps([mine, heard]))
        pause_s = _wait(rank, 0, deadline_s, pause_s)


def _wait(rank: int, peer: int, deadline_s: float, pause_s: float) -> float:
    """Sleep for `pause_s` seconds and return the next pause; raise TimeoutError at the deadline."""
    if time.monotonic() >= deadline_s:
        raise TimeoutError(
            f"the rendezvous Timed out: rank {rank} waits for rank {peer}, or for a rank that "
            f"rank {peer} waits for",
            rank=rank,
            peer=peer,
        )
    time.sleep(pause_s)
    return min(2 * pause_s, _MOST_POLL_S)
