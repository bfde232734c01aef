"""The switch of a loopback fabric: matches the posts of all ranks and copies the data."""

import ctypes
import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np

from slackline.errors import MismatchError, PeerError, SlacklineError, TimeoutError
from slackline.nic import Kind
from slackline.testing.reference import Array, numpy_dtype, reduce_arrays, reduce_nodes
from slackline.wire import DType

__all__ = ["LoopbackTransfer", "Part", "Post", "Switch"]

Part = tuple[int, int]
"""A buffer as its address and its number of elements."""


class LoopbackTransfer:
    """An implementation of slackline.nic.Transfer for a rank's side of one operation.

    The transfer ends when the last rank has posted its side, in that rank's thread.
    """

    def __init__(self, what: str, rank: int, timeout: timedelta) -> None:
        self._what = what
        self._rank = rank
        self._timeout = timeout
        self._changed = threading.Condition()
        self._ended = False
        self._error: SlacklineError | None = None
        self._callbacks: list[Callable[[BaseException | None], None]] = []
        self.source: int | None = None
        self.ended_ns = 0

    def done(self) -> bool:
        return self._ended

    def wait(self, timeout: timedelta | None = None) -> None:
        limit = self._timeout if timeout is None else timeout
        with self._changed:
            if not self._changed.wait_for(lambda: self._ended, limit.total_seconds()):
                text = f"rank {self._rank}: {self._what} Timed out after {limit.total_seconds()} s"
                raise TimeoutError(text, rank=self._rank)
        if self._error is not None:
            raise self._error

    def add_done_callback(self, fn: Callable[[BaseException | None], None], /) -> None:
        with self._changed:
            if not self._ended:
                self._callbacks.append(fn)
                return
        fn(self._error)

    def open_at_end(self, word: int, value: int) -> None:
        """Do nothing: there is no engine, and the callbacks open gates."""

    def end(self, error: SlacklineError | None = None) -> None:
        with self._changed:
            if self._ended:
                return
            self._error = error
            self.ended_ns = time.monotonic_ns()
            self._ended = True
            self._changed.notify_all()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(error)


@dataclass(frozen=True, kw_only=True)
class Post:
    """A rank's side of a collective."""

    signature: tuple[Any, ...]
    """Kind, type, reduction, root, counts: what all ranks must post alike."""
    sources: Sequence[Part]
    targets: Sequence[Part]
    transfer: LoopbackTransfer


@dataclass(kw_only=True)
class _Mailbox:
    """The unmatched sends and receives of one pair (receiver, tag)."""

    sent: list[tuple[int, Part, DType, LoopbackTransfer]] = field(default_factory=list)
    awaited: list[tuple[int | None, Part, DType, LoopbackTransfer]] = field(default_factory=list)


class Switch:
    """A matcher of the operations that `size` ranks post; the last post copies the data."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = threading.RLock()
        self._meetings: dict[tuple[str, int, int], dict[int, Post]] = defaultdict(dict)
        self._mail: dict[tuple[int, int], _Mailbox] = defaultdict(_Mailbox)
        self._fault: SlacklineError | None = None
        self._left: set[int] = set()

    def collective(self, rank: int, key: tuple[str, int, int], post: Post) -> None:
        """Post one rank's side of a collective; the last rank's call executes the collective."""
        with self._lock:
            if self._refuse(post.transfer):
                return
            meeting = self._meetings[key]
            meeting[rank] = post
            if len(meeting) < self.size:
                missing = sorted(self._left - meeting.keys())
                if missing:
                    self.fail(PeerError(f"rank {missing[0]} has closed the group", peer=missing[0]))
                return
            del self._meetings[key]
            posts = [meeting[i] for i in range(self.size)]
            error = _mismatch(posts)
            if error is None:
                _execute(posts)
        for each in posts:
            each.transfer.end(error)

    def send(
        self, rank: int, peer: int, tag: int, part: Part, dtype: DType, mine: LoopbackTransfer
    ) -> None:
        with self._lock:
            if self._refuse(mine):
                return
            self._mail[peer, tag].sent.append((rank, part, dtype, mine))
            met = self._deliver(peer, tag)
        _finish(met)

    def recv(
        self,
        rank: int,
        peer: int | None,
        tag: int,
        part: Part,
        dtype: DType,
        mine: LoopbackTransfer,
    ) -> None:
        with self._lock:
            if self._refuse(mine):
                return
            self._mail[rank, tag].awaited.append((peer, part, dtype, mine))
            met = self._deliver(rank, tag)
        _finish(met)

    def _deliver(
        self, receiver: int, tag: int
    ) -> list[tuple[LoopbackTransfer, SlacklineError | None]]:
        """Match receives with sends of one (receiver, tag), and copy the data of each match.

        Returns the transfers that have ended, each with its error or None.
        """
        mailbox = self._mail[receiver, tag]
        met: list[tuple[LoopbackTransfer, SlacklineError | None]] = []
        for awaited in list(mailbox.awaited):
            peer, target, wanted, receiving = awaited
            for sent in mailbox.sent:
                sender, source, dtype, sending = sent
                if peer is not None and peer != sender:
                    continue
                mailbox.sent.remove(sent)
                mailbox.awaited.remove(awaited)
                error: SlacklineError | None = None
                if (source[1], dtype) != (target[1], wanted):
                    error = MismatchError(
                        f"rank {receiver} receives {target[1]} of {wanted.name}, "
                        f"but rank {sender} sends {source[1]} of {dtype.name}",
                        rank=receiver,
                        peer=sender,
                    )
                else:
                    _memory(target, dtype)[:] = _memory(source, dtype)
                receiving.source = sender
                met += [(sending, error), (receiving, error)]
                break
        return met

    def _refuse(self, transfer: LoopbackTransfer) -> bool:
        """End the transfer with the group's error, if any; return whether there was an error."""
        if self._fault is not None:
            transfer.end(self._fault)
        return self._fault is not None

    def leave(self, rank: int) -> None:
        """Record that the rank has closed its group; fail collectives that wait for the rank."""
        with self._lock:
            self._left.add(rank)
            if any(rank not in meeting for meeting in self._meetings.values() if meeting):
                self.fail(PeerError(f"rank {rank} has closed the group", peer=rank))

    def fail(self, error: SlacklineError) -> None:
        """End all pending transfers, and every later transfer, with the error."""
        with self._lock:
            self._fault = self._fault or error
            pending = [post.transfer for m in self._meetings.values() for post in m.values()]
            for mailbox in self._mail.values():
                pending += [entry[-1] for entry in (*mailbox.sent, *mailbox.awaited)]
            self._meetings.clear()
            self._mail.clear()
        for transfer in pending:
            transfer.end(error)


def _finish(met: list[tuple[LoopbackTransfer, SlacklineError | None]]) -> None:
    for transfer, error in met:
        transfer.end(error)


def _mismatch(posts: Sequence[Post]) -> MismatchError | None:
    for rank, post in enumerate(posts):
        if post.signature != posts[0].signature:
            text = f"rank {rank} posted {post.signature}, but rank 0 posted {posts[0].signature}"
            return MismatchError(text, rank=rank, peer=0)
    if posts[0].signature[0] is Kind.ALL_TO_ALL:
        for i, j in itertools.product(range(len(posts)), repeat=2):
            sent, awaited = posts[j].sources[i][1], posts[i].targets[j][1]
            if sent != awaited:
                text = f"rank {i} awaits {awaited} elements of rank {j}, which sends {sent}"
                return MismatchError(text, rank=i, peer=j)
    return None


def _execute(posts: Sequence[Post]) -> None:
    """Execute a collective from all ranks' posts; reads all sources before writing any target."""
    kind, dtype = posts[0].signature[:2]
    n = range(len(posts))
    values = [[_memory(part, dtype).copy() for part in post.sources] for post in posts]
    runs = posts[0].signature[5] if len(posts[0].signature) > 5 else None
    if runs is not None:
        nodes = [node for value in values for node in value]
        result = reduce_nodes(nodes, runs, posts[0].signature[2], dtype)
        moves = [(post.targets[0], result) for post in posts]
    elif kind in (Kind.ALL_REDUCE, Kind.REDUCE):
        result = reduce_arrays([value[0] for value in values], posts[0].signature[2], dtype)
        receivers = n if kind is Kind.ALL_REDUCE else [posts[0].signature[3]]
        moves = [(posts[i].targets[0], result) for i in receivers]
    elif kind is Kind.REDUCE_SCATTER:
        op = posts[0].signature[2]
        moves = [(posts[i].targets[0], reduce_arrays([v[i] for v in values], op, dtype)) for i in n]
    elif kind is Kind.ALL_GATHER:
        moves = [(posts[i].targets[j], values[j][0]) for i in n for j in n]
    elif kind is Kind.BROADCAST:
        moves = [(posts[i].targets[0], values[posts[0].signature[3]][0]) for i in n]
    elif kind is Kind.GATHER:
        moves = [(posts[posts[0].signature[3]].targets[j], values[j][0]) for j in n]
    elif kind is Kind.SCATTER:
        moves = [(posts[i].targets[0], values[posts[0].signature[3]][i]) for i in n]
    elif kind is Kind.ALL_TO_ALL:
        moves = [(posts[i].targets[j], values[j][i]) for i in n for j in n]
    else:
        moves = []
    for part, value in moves:
        _memory(part, dtype)[:] = value


def _memory(part: Part, dtype: DType) -> Array:
    """Return a view of `count` elements at an address; the caller of the post keeps them alive."""
    address, count = part
    if count == 0:
        return np.empty(0, numpy_dtype(dtype))
    raw = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return np.ctypeslib.as_array(raw).view(numpy_dtype(dtype))
