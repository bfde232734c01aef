"""Agreement of the survivors of a lost rank on the members of the next group.

The survivors agree through the store of the first group's rendezvous:

    generation 1    here/0   here/2   here/3        rank 1 is lost: its link has ended
                    decision: members 0, 2, 3       the first decision written counts for all
                    meet/...                        the members open a group
    generation 2    ...                             if a member is lost before that: once more

Ranks keep the numbers that they had in the first group. The store alone decides: a decision is
written once, by compare-and-set, and a rank that the decision does not list is excluded, even if
that rank is alive. The ranks therefore never split into two groups, whichever links each rank sees
as working.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from slackline.backend import KeyValueStore, Membership
from slackline.errors import LinkError, PeerError, SlacklineError, TimeoutError

__all__ = ["RendezvousStore", "agree"]

_POLL_S = 0.005
_PATIENCE_NS = 2_000_000_000
"""The wait for missing survivors before their operations are aborted. A missing survivor may be
blocked on a rank that waits here already. Over TCP a survivor may need a second to detect a loss by
itself, and the error of its own detection says more."""


def agree(
    before: Membership, *, least: int, deadline_ns: int, call: Callable[[], None]
) -> tuple[Membership, SlacklineError | None]:
    """Agree with the survivors on the group's next generation.

    Returns the generation, and an error that says why the group cannot go on, or None. A
    TimeoutError, on all survivors, names the members that are missing at `deadline_ns` (of
    time.monotonic_ns()). A PeerError means that fewer than `least` members are left, or that the
    other members go on without this rank.

    Blocks until every member of `before` has called this function or is lost. If members are
    missing after two seconds, `call` runs once; it should abort operations that block these members
    elsewhere. Raises LinkError if the store does not answer.
    """
    after = before.next()
    store, prefix = before.store, after.key_prefix
    call_ns: int | None = time.monotonic_ns() + _PATIENCE_NS
    with _answering(before.me):
        store.set(f"{prefix}/begun", "")
        store.set(f"{prefix}/here/{before.me}", "")
        here: set[int] = set()
        while not store.check([f"{prefix}/decision"]):
            lost = before.lost()
            here |= {r for r in before.members if store.check([f"{prefix}/here/{r}"])}
            late = [r for r in before.members if r not in here and r not in lost]
            if not late:
                _write(store, prefix, {"members": sorted(here - lost), "least": least})
            elif time.monotonic_ns() >= deadline_ns:
                _write(store, prefix, {"late": late})
            else:
                if call_ns is not None and time.monotonic_ns() >= call_ns:
                    call_ns = None
                    call()
                time.sleep(_POLL_S)
        decision = json.loads(store.get(f"{prefix}/decision"))
    if late := decision.get("late"):
        names = ", ".join(map(str, late))
        text = f"shrink Timed out: ranks that are not lost and did not come: {names}"
        return after, TimeoutError(text, rank=before.me, peer=late[0])
    members = tuple(decision["members"])
    if len(members) < decision["least"]:
        text = f"only ranks {members} are left, of at least {decision['least']} that were asked for"
        return after, PeerError(text, rank=before.me)
    after = replace(after, members=members)
    if before.me not in members:
        text = f"ranks {members} have closed ranks without rank {before.me}, which they had lost"
        return after, PeerError(text, rank=before.me)
    return after, None


class RendezvousStore:
    """A key-value store for the members of one generation, who open a group through it.

    A wait for a key ends with PeerError if a member is lost.
    """

    def __init__(self, membership: Membership, deadline_ns: int) -> None:
        self._membership = membership
        self._deadline_ns = deadline_ns

    def set(self, key: str, value: str, /) -> None:
        with _answering(self._membership.me):
            self._membership.store.set(f"{self._membership.key_prefix}/{key}", value)

    def get(self, key: str, /) -> bytes:
        membership = self._membership
        while not self.check([key]):
            time.sleep(_POLL_S)
        with _answering(membership.me):
            return membership.store.get(f"{membership.key_prefix}/{key}")

    def check(self, keys: list[str], /) -> bool:
        """Return whether all `keys` have been set; raise TimeoutError if not at the deadline.

        Raises PeerError while a key is missing if a member is lost.
        """
        membership = self._membership
        with _answering(membership.me):
            if membership.store.check([f"{membership.key_prefix}/{key}" for key in keys]):
                return True
            self.require_members()
        if time.monotonic_ns() >= self._deadline_ns:
            raise TimeoutError(
                f"shrink Timed out: the ranks {membership.members} did not all open their group",
                rank=membership.me,
            )
        return False

    def require_members(self) -> None:
        """Raise PeerError if a member is lost, or has begun the next generation of the group."""
        membership = self._membership
        gone = sorted(membership.lost() & set(membership.members))
        if gone:
            raise PeerError(f"rank {gone[0]} was lost too", rank=membership.me, peer=gone[0])
        if membership.store.check([f"{membership.next().key_prefix}/begun"]):
            raise PeerError("another rank was lost meanwhile", rank=membership.me)


def _write(store: KeyValueStore, prefix: str, decision: dict[str, int | Sequence[int]]) -> None:
    store.compare_set(f"{prefix}/decision", "", json.dumps(decision))


@contextmanager
def _answering(me: int) -> Iterator[None]:
    """Raise LinkError for any error of the key-value store: ranks cannot agree without it."""
    try:
        yield
    except SlacklineError:
        raise
    except (RuntimeError, OSError) as error:
        raise LinkError(
            "the ranks' key-value store does not answer; the store must outlive every rank, as "
            f"torchrun's store does: {error}",
            rank=me,
        ) from error
