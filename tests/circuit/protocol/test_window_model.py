"""An exhaustive check of the protocol between a node and the host that speaks for its ranks.

The node is its twin, and the channel is the worst one: a packet that was ever sent may arrive at
any time, in any order and any number of times, or never. The host may send the frames of its window
again at any time, and the node may be restarted: the host then opens it again at the first frame
without a sum, and the frames carry another `job`. Every state that can be reached is visited, with
two ports, two slots and numbers that wrap on the way. In each of them, every sum that arrives has
the right bits, no frames are taken for others, and the host can still finish.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import pytest

from slackline.circuit import NodeOptions, NodeTwin
from slackline.wire import (
    LAST_SEQUENCE,
    Collective,
    DType,
    FrameKind,
    Header,
    ReduceOp,
    decode,
    encode,
    next_sequence,
)

OPTIONS = NodeOptions(ports=2, lanes=1, slots=2, payload_bytes=64)
FIRST = LAST_SEQUENCE - 1


def numbers(count: int) -> list[int]:
    found = [FIRST]
    while len(found) < count:
        found.append(next_sequence(found[-1]))
    return found


def frame(port: int, number: int, job: int) -> bytes:
    data = np.array([number % 1000 + port / 4], np.float32).tobytes()
    return (
        encode(
            Header(
                kind=FrameKind.DATA,
                job=job,
                source=port,
                dtype=DType.FLOAT32,
                collective=Collective.ALL_REDUCE,
                reduce_op=ReduceOp.SUM,
                sequence=number,
                total=4,
                length=4,
            )
        )
        + data
    )


def expected(number: int) -> bytes:
    return np.array([2 * (number % 1000) + 0.25], np.float32).tobytes()


@dataclass
class State:
    """The host, the node, and the packets that were ever sent."""

    twin: NodeTwin
    frames: list[int]
    """The numbers of all sets."""
    sent: int = 0
    """The host has sent the sets before this one since it opened the node."""
    opened_at: int = 0
    """The set at which the node was opened."""
    answered: frozenset[int] = frozenset()
    """Sets whose sum has arrived."""
    sums: frozenset[tuple[int, int]] = frozenset()
    """Sums that the node has sent, to any port: job and set."""

    def key(self) -> tuple[object, ...]:
        twin = self.twin
        waiting = tuple(tuple(h.sequence for h, _ in kept) for kept in twin._kept)
        # The kept sums are those of the latest numbers, so their numbers say all.
        return (
            *(self.sent, self.opened_at, self.answered, self.sums),
            *(twin.job, tuple(twin._expected), waiting, tuple(twin._sums)),
        )

    @property
    def base(self) -> int:
        """The first set without a sum."""
        sets = range(len(self.frames))
        return next((k for k in sets if k not in self.answered), len(self.frames))

    def arrives(self, port: int, k: int) -> "State":
        """Return the state after the frame of set `k` arrives at a port."""
        after = replace(self, twin=deepcopy(self.twin))
        twin = after.twin
        made = twin.receive(port, frame(port, self.frames[k], twin.job))
        made += [each for _, each in twin.resent]
        twin.resent.clear()
        for each in made:
            header = decode(each)
            assert header.kind is FrameKind.DATA
            assert each[64:] == expected(header.sequence)
            after.sums |= {(twin.job, self.frames.index(header.sequence))}
        assert twin.mismatched == 0
        return after

    def following(self, restarts: int) -> Iterator["State"]:
        """Yield the states that may follow."""
        if self.sent < min(len(self.frames), self.base + OPTIONS.slots):
            yield replace(self, sent=self.sent + 1)
        # Frames of an earlier job change nothing: the node counts them as foreign.
        for k in range(self.opened_at, self.sent):
            for port in range(OPTIONS.ports):
                yield self.arrives(port, k)
        for job, k in self.sums:
            if accepts(job, self.twin.job) and k not in self.answered:
                # A sum of a set beyond the window can't be there: its frames were not sent.
                assert k < self.base + OPTIONS.slots
                yield replace(self, answered=self.answered | {k})
        if self.twin.job < restarts and self.base < len(self.frames):
            twin = NodeTwin(options=OPTIONS, job=self.twin.job + 1, first=self.frames[self.base])
            answered = frozenset(range(kept(self.base, len(self.frames))))
            yield replace(
                self,
                twin=twin,
                sent=self.base,
                opened_at=self.base,
                answered=self.answered & answered,
            )

    def finishes(self) -> bool:
        """Return whether the host gets all sums if the channel loses nothing from now on."""
        now = self
        for _ in range(len(self.frames) + 1):
            window = min(len(self.frames), now.base + OPTIONS.slots)
            now = replace(now, sent=max(now.sent, window))
            for k in range(now.base, window):
                for port in range(OPTIONS.ports):
                    now = now.arrives(port, k)
            heard = {k for job, k in now.sums if accepts(job, now.twin.job)}
            now = replace(now, answered=now.answered | heard)
        return now.base == len(self.frames)


def kept(base: int, count: int) -> int:
    """Return the sets whose sums the host keeps when it opens a restarted node again.

    The node awaits the frames of all sets from `base` on, also of those that had a sum already.
    """
    return min(base, count)


def accepts(job: int, current: int) -> bool:
    """Return whether the host takes a sum of a job while the node has another one."""
    return job == current


def visited(count: int, restarts: int) -> int:
    """Visit all states of a run of `count` sets; return their number."""
    start = State(NodeTwin(options=OPTIONS, first=FIRST), numbers(count))
    known = {start.key()}
    waiting = [start]
    while waiting:
        state = waiting.pop()
        for after in state.following(restarts):
            if after.key() not in known:
                known.add(after.key())
                waiting.append(after)
        assert state.finishes(), state.key()
    return len(known)


def test_every_state_has_right_sums_and_finishes() -> None:
    assert visited(6, restarts=0) == 81


def test_every_state_with_a_restart_of_the_node_has_right_sums_and_finishes() -> None:
    assert visited(3, restarts=1) > 200


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_state_with_two_restarts_of_the_node_has_right_sums_and_finishes() -> None:
    assert visited(4, restarts=2) > 2000


def test_the_check_finds_a_host_that_takes_sums_from_before_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(globals(), "accepts", lambda job, current: True)
    with pytest.raises(AssertionError):
        visited(2, restarts=1)


def test_the_check_finds_a_host_that_keeps_sums_beyond_the_first_missing_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(globals(), "kept", lambda base, count: count)
    with pytest.raises(AssertionError):
        visited(3, restarts=1)


def test_the_check_finds_a_node_that_adds_a_frame_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    import slackline.circuit.twins._node as home

    monkeypatch.setattr(home, "sequences_behind", lambda sequence, expected: 0)
    with pytest.raises(AssertionError):
        visited(3, restarts=0)


def test_the_check_finds_a_node_that_keeps_no_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = NodeTwin.receive

    def forgetful(self: NodeTwin, port: int, frame: bytes, *, bad: bool = False) -> list[bytes]:
        found = receive(self, port, frame, bad=bad)
        # The sum is lost on the way as often as not, and is not there a second time.
        if self._sums and len(found) and decode(found[0]).sequence == FIRST:
            self._sums.clear()
            return []
        return found

    monkeypatch.setattr(NodeTwin, "receive", forgetful)
    with pytest.raises(AssertionError):
        visited(2, restarts=0)
