"""Who is still there: survivors of a lost rank agree, through the store they once met at.

    generation 1    here/0   here/2   here/3        rank 1 is lost: its link has ended
                    decision: members 0, 2, 3       the first one written counts, for everybody
                    meet/...                        the members open a group
    generation 2    ...                             a member is lost before that: once more

Ranks keep the numbers that they had in the first group. The store alone decides: a decision is
written once, by compare-and-set, and whoever is not in it is out, alive or not. So there is never
a second group, whatever the links look like from anywhere.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from slackline.errors import LinkError, PeerError, SlacklineError, TimeoutError
from slackline.nic import Group

__all__ = ["Agreement", "MeetingPlace", "Shared", "agree", "first_agreement"]

_POLL_S = 0.005
_PATIENCE_NS = 2_000_000_000
"""Whoever has not come by then may wait for one who has, and is called. Over TCP a survivor may
need a second to see a loss for itself, and its own error says more."""


class Shared(Protocol):
    """What is asked of the store; torch's stores fit."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What the survivors of one generation have in common."""

    store: Shared
    generation: int
    me: int
    members: tuple[int, ...]
    """Their numbers in the first group, in order."""
    lost: Callable[[], frozenset[int]]
    """Which ranks of the first group are lost, as far as this one can see."""

    @property
    def place(self) -> str:
        """What the generation's keys begin with."""
        return f"slackline/generation/{self.generation}"

    def next(self) -> "Agreement":
        """The generation that follows, with nobody left out yet."""
        return replace(self, generation=self.generation + 1)


def first_agreement(group: Group, store: Shared) -> Agreement:
    """What the ranks of a new group have in common."""
    return Agreement(
        store=store,
        generation=0,
        me=group.rank,
        members=tuple(range(group.size)),
        lost=group.lost,
    )


def agree(
    before: Agreement, *, least: int, deadline_ns: int, call: Callable[[], None]
) -> tuple[Agreement, SlacklineError | None]:
    """Return the next generation, the same one on every survivor, and why it cannot go on.

    Blocks until every member of `before` has come here or is lost; `call` is to end what keeps them
    elsewhere, and runs once, where it takes them longer than a moment. What stands in the way:
    TimeoutError, on all, that names who has not come by `deadline_ns` (of time.monotonic_ns());
    PeerError where fewer than `least` are left, or where the others go on without this rank.
    Raises LinkError when the store does not answer.
    """
    after = before.next()
    store, place = before.store, after.place
    call_ns: int | None = time.monotonic_ns() + _PATIENCE_NS
    with _answering(before.me):
        store.set(f"{place}/begun", "")
        store.set(f"{place}/here/{before.me}", "")
        here: set[int] = set()
        while not store.check([f"{place}/decision"]):
            lost = before.lost()
            here |= {r for r in before.members if store.check([f"{place}/here/{r}"])}
            late = [r for r in before.members if r not in here and r not in lost]
            if not late:
                _write(store, place, {"members": sorted(here - lost), "least": least})
            elif time.monotonic_ns() >= deadline_ns:
                _write(store, place, {"late": late})
            else:
                if call_ns is not None and time.monotonic_ns() >= call_ns:
                    call_ns = None
                    call()
                time.sleep(_POLL_S)
        decision = json.loads(store.get(f"{place}/decision"))
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


class MeetingPlace:
    """A nic's Store for the members of one generation; who waits in it learns of a loss."""

    def __init__(self, agreement: Agreement, deadline_ns: int) -> None:
        self._agreement = agreement
        self._deadline_ns = deadline_ns

    def set(self, key: str, value: str, /) -> None:
        with _answering(self._agreement.me):
            self._agreement.store.set(f"{self._agreement.place}/{key}", value)

    def get(self, key: str, /) -> bytes:
        agreement = self._agreement
        name = f"{agreement.place}/{key}"
        with _answering(agreement.me):
            while not agreement.store.check([name]):
                self.check()
                if time.monotonic_ns() >= self._deadline_ns:
                    raise TimeoutError(
                        f"shrink Timed out: the ranks {agreement.members} did not all open their "
                        "group",
                        rank=agreement.me,
                    )
                time.sleep(_POLL_S)
            return agreement.store.get(name)

    def check(self) -> None:
        """Raise PeerError if a member is lost, or has gone on to the next generation."""
        agreement = self._agreement
        gone = sorted(agreement.lost() & set(agreement.members))
        if gone:
            raise PeerError(f"rank {gone[0]} was lost too", rank=agreement.me, peer=gone[0])
        if agreement.store.check([f"{agreement.next().place}/begun"]):
            raise PeerError("another rank was lost meanwhile", rank=agreement.me)


def _write(store: Shared, place: str, decision: dict[str, int | Sequence[int]]) -> None:
    store.compare_set(f"{place}/decision", "", json.dumps(decision))


@contextmanager
def _answering(me: int) -> Iterator[None]:
    """What the store raises becomes a LinkError: nobody can agree without it."""
    try:
        yield
    except SlacklineError:
        raise
    except (RuntimeError, OSError) as error:
        raise LinkError(
            "the store where the ranks meet does not answer; it has to outlive every rank, as "
            f"torchrun's does: {error}",
            rank=me,
        ) from error
