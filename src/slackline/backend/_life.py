"""A fresh prefix of keys in the store for one life of a group, free of values of earlier lives.

torchrun restarts ranks with the same store, so a key may still hold a value of a dead process. Each
process therefore chooses a random name, and rank 0's name becomes the prefix:

    rank r                                       rank 0
    rank/r = [r's name, ""]             ──>      reads rank/r, which may be old
                                        <──      to/<r's name> = [rank 0's name, false]
    rank/r = [r's name, rank 0's name]  ──>      a rank that answers with rank 0's name is alive
                                        <──      to/<r's name> = [rank 0's name, true], once all are
"""

import json
import secrets
import time
from datetime import timedelta

from slackline.backend._torch import Store
from slackline.errors import TimeoutError

__all__ = ["begin_life"]

_POLL_S = 0.002


def begin_life(store: Store, rank: int, size: int, timeout: timedelta) -> str:
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
    names = []
    for peer in range(1, size):
        told = ""
        while True:
            name, heard = json.loads(store.get(f"slackline/rank/{peer}"))
            if heard == mine:
                break
            if name != told:
                store.set(f"slackline/to/{name}", json.dumps([mine, False]))
                told = name
            _wait(0, peer, deadline_s)
        names.append(name)
    for name in names:
        store.set(f"slackline/to/{name}", json.dumps([mine, True]))
    return mine


def _follow(store: Store, mine: str, rank: int, deadline_s: float) -> str:
    heard = ""
    store.set(f"slackline/rank/{rank}", json.dumps([mine, heard]))
    while True:
        leader: str
        leader, all_here = json.loads(store.get(f"slackline/to/{mine}"))
        if all_here:
            return leader
        if leader != heard:
            heard = leader
            store.set(f"slackline/rank/{rank}", json.dumps([mine, heard]))
        _wait(rank, 0, deadline_s)


def _wait(rank: int, peer: int, deadline_s: float) -> None:
    if time.monotonic() >= deadline_s:
        raise TimeoutError(
            f"the rendezvous Timed out: rank {rank} waits for rank {peer} or for a rank that it "
            "waits for",
            rank=rank,
            peer=peer,
        )
    time.sleep(_POLL_S)
