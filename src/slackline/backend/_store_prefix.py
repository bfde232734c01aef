"""A group's start in the store: a fresh prefix of keys, and the members by generation.

torchrun restarts ranks with the same store, so a key may still hold a value of a dead process. Each
process therefore chooses a random name, and rank 0's name becomes the prefix:

    rank r                                   rank 0
    rank/r = r's name                  ──>   reads rank/r, which may be old
                                       <──   to/<r's name> = rank 0's name
    here/<rank 0's name>/r = r's name  ──>   a rank that answers with rank 0's name is alive
                                       <──   all/<rank 0's name>, once all ranks are alive

The members of the group are named by generation: each loss of ranks begins a new one. A thread
watches the connections of the store meanwhile, as a path may swallow the messages of the store.
"""

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from slackline._lazy import record
from slackline.backend._torch import Store, store_port
from slackline.errors import TimeoutError
from slackline.nic import Group
from slackline.nic.connect import absent_keys, answering, ranks_text, wait_until

if TYPE_CHECKING:
    from slackline.backend._store_watch import Stuck

__all__ = ["KeyValueStore", "Membership", "agree_on_prefix", "first_membership", "watched_store"]

_PAUSE_S = 5.0
"""The time between two looks at the connections of the store, and before the first look."""


@contextmanager
def watched_store(store: Store, size: int, pause_s: float = _PAUSE_S) -> Iterator[None]:
    """Watch the connections of a TCPStore of `size` ranks within the body of the `with` statement.

    Logs each connection whose data do not arrive, once, and adds it as a note to an error that
    leaves the body. Other stores, and the store of a lone rank, are not watched.
    """
    port = store_port(store) if size > 1 else None
    if port is None:
        yield
        return
    ended = threading.Event()
    told: dict[str, Stuck] = {}

    def look() -> None:
        if not ended.wait(pause_s):
            # Here and not above: most groups are open before.
            from slackline.backend._store_watch import watch

            watch(port, ended, pause_s, told)

    thread = threading.Thread(target=look, name="slackline store", daemon=True)
    thread.start()
    try:
        yield
    except BaseException as error:
        for stuck in told.values():
            error.add_note(str(stuck))
        raise
    finally:
        ended.set()
        thread.join()


def agree_on_prefix(store: Store, rank: int, size: int, deadline_s: float) -> str:
    """Agree with all ranks on a fresh key prefix, and return it.

    Blocks until every rank has made the call, or raises TimeoutError at `deadline_s` of
    time.monotonic(), with the ranks that have not come; the store's own timeout has no effect.
    Raises LinkError if the store does not answer.
    """
    mine = secrets.token_hex(8)
    if size == 1:
        return f"slackline/life/{mine}"
    with answering(rank):
        if rank == 0:
            leader = _lead(store, mine, size, deadline_s)
        else:
            leader = _follow(store, mine, rank, size, deadline_s)
    return f"slackline/life/{leader}"


def _lead(store: Store, mine: str, size: int, deadline_s: float) -> str:
    told: dict[int, str] = {}
    names = {peer: f"slackline/rank/{peer}" for peer in range(1, size)}
    here = {peer: f"slackline/here/{mine}/{peer}" for peer in range(1, size)}

    def all_here() -> bool:
        """Answer each rank that has come; return whether all have heard this rank."""
        if len(told) == len(names) and store.check(list(here.values())):
            return True
        together = store.check(list(names.values()))
        for peer, key in names.items():
            if not together and not store.check([key]):
                continue
            name = store.get(key).decode()
            if name != told.get(peer):
                store.set(f"slackline/to/{name}", mine)
                told[peer] = name
        return False

    def late() -> list[int]:
        absent = absent_keys(store, list(here.values()))
        return [peer for peer, key in here.items() if key in absent] or list(here)

    _wait(all_here, late, 0, size, deadline_s)
    store.set(f"slackline/all/{mine}", "")
    return mine


def _follow(store: Store, mine: str, rank: int, size: int, deadline_s: float) -> str:
    heard = ""
    store.set(f"slackline/rank/{rank}", mine)

    def all_here() -> bool:
        """Answer rank 0; return whether rank 0 has heard all ranks."""
        nonlocal heard
        if heard and store.check([f"slackline/all/{heard}"]):
            return True
        if store.check([f"slackline/to/{mine}"]):
            leader = store.get(f"slackline/to/{mine}").decode()
            if leader != heard:  # Another process may have become rank 0 meanwhile.
                heard = leader
                store.set(f"slackline/here/{leader}/{rank}", mine)
        return False

    def late() -> list[int]:
        if not heard:
            return [0]
        keys = {peer: f"slackline/here/{heard}/{peer}" for peer in range(1, size)}
        absent = absent_keys(store, list(keys.values()))
        return [peer for peer, key in keys.items() if key in absent] or [0]

    _wait(all_here, late, rank, size, deadline_s)
    return heard


def _wait(
    all_here: Callable[[], bool],
    late: Callable[[], list[int]],
    rank: int,
    size: int,
    deadline_s: float,
) -> None:
    """Wait until `all_here` returns True; raise TimeoutError with the ranks that are `late`."""
    if not wait_until(all_here, deadline_s, size):
        ranks = late()
        raise TimeoutError(
            "the rendezvous Timed out, at the agreement on a key prefix in the store: rank "
            f"{rank} waits for {ranks_text(ranks)}",
            rank=rank,
            peer=ranks[0],
        )


class KeyValueStore(Protocol):
    """A shared key-value store with compare-and-set, such as torch's stores."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...


@record(frozen=True, kw_only=True)
class Membership:
    """The members of one generation of a group, as the survivors of lost ranks have agreed."""

    store: KeyValueStore
    generation: int
    me: int
    members: tuple[int, ...]
    """The members' ranks in the first group, in ascending order."""
    lost: Callable[[], frozenset[int]]
    """A function that returns the ranks of the first group that this rank has lost."""

    @property
    def key_prefix(self) -> str:
        """The prefix, in the store, of the keys of this generation of the group."""
        return f"slackline/generation/{self.generation}"

    def next(self) -> "Membership":
        """Return the next generation of the group, at first with the same members."""
        return replace(self, generation=self.generation + 1)


def first_membership(group: Group, store: KeyValueStore) -> Membership:
    """Return the membership of a new group, whose members are all its ranks."""
    return Membership(
        store=store,
        generation=0,
        me=group.rank,
        members=tuple(range(group.size)),
        lost=group.lost,
    )
