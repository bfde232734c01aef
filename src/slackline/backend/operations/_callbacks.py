"""Callbacks of operations' Futures: the order in which they start, and what they post.

Future.then ─ _Tracked.attach ─ Sequencer ─ CallbackRun ─ the program's callback

torch's Future runs a callback when it completes, on the thread that completes it. `then` returns a
Future of C++, whose `then` no subclass can replace. So this module replaces two methods of the
class torch._C.Future: for Futures that slackline did not return, they call torch's own.

The order of the calls matches most operations of the ranks. The ranks run callbacks of Futures at
different times, so that this order cannot match the operations that callbacks post. An identity
names the way to such an operation, which is the same on all ranks:

    7        the group's collective 7           c0  its Future's first callback
    m2       the group's message 2              t1  the callback of the second `then` in a callback
    7.c0.p1  the second operation that the first callback of collective 7 posts
"""

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from hashlib import blake2b
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.futures import Future

from slackline.errors import UsageError
from slackline.nic import PLACES, Operation, callback_tag, nested_callback_tag

__all__ = [
    "CallbackRun",
    "Gates",
    "GroupCallbacks",
    "GroupIdentity",
    "Key",
    "Number",
    "Order",
    "Origin",
    "Sequencer",
    "current",
    "placed",
    "running",
    "tags_here",
    "track",
    "untracked_then",
]


_MOST_STEPS = 16
_ordinals = itertools.count()


class Order(Enum):
    """The position in which an operation is posted, relative to the group's other operations."""

    COLLECTIVE = auto()
    """A collective is posted after all earlier ones, since ranks match collectives by call
    order."""
    SEND = auto()
    """A send is posted after all earlier sends, but independently of collectives, which may
    block."""
    RECEIVE = auto()
    """A receive is posted within the call, since no data must first be copied to host memory."""


class GroupIdentity:
    """The names of a group in the identities of its operations."""

    def __init__(self, size: int) -> None:
        self.name = ""
        self.members: tuple[int, ...] = tuple(range(size))
        """The ranks in the job of the group's ranks."""
        self._ordinal = next(_ordinals)

    def seen_from(self, other: "GroupIdentity") -> str:
        """Return this group's label in the identities of operations on the group `other`.

        The members of `other` post such an operation in callbacks of this group. If they are all
        members of this group, they know it by its name. Otherwise they are in different groups, as
        the hosts' groups are below a group between hosts; the groups' labels are then their numbers
        in the order in which a process opens its groups.
        """
        if other is self:
            return ""
        common = set(other.members) <= set(self.members)
        return self.name if common else f"#{self._ordinal}"


@dataclass(slots=True, eq=False)
class Origin:
    """The identity of an operation or of a callback: an operation, and the steps from it."""

    group: GroupIdentity
    number: int
    """The number of the group's collective, or message, that the program posted outside of
    callbacks."""
    message: bool = False
    steps: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ".".join([f"{'m' * self.message}{self.number}", *self.steps])

    def step(self, kind: str, number: int) -> "Origin":
        """Return the identity that is one step further; a long way is shortened to a hash."""
        steps = (*self.steps, f"{kind}{number}")
        if len(steps) > _MOST_STEPS:
            steps = ("h" + blake2b(".".join(steps).encode(), digest_size=16).hexdigest(),)
        return Origin(self.group, self.number, self.message, steps)

    def tag_on(self, group: GroupIdentity) -> int:
        """Return the tag that identifies a collective on `group`, posted in a callback.

        A collective in a callback of an operation that the program posted on the same group has a
        tag that shows these numbers; 56 bits of a hash identify any other.
        """
        *callbacks, place = self.steps
        if group is self.group and not self.message and place[0] == "p":
            callback, index = _code(callbacks), int(place[1:])
            if callback is not None and index < PLACES:
                return callback_tag(self.number, callback, index)
        words = f"{self.group.seen_from(group)}/{self}"
        digest = blake2b(words.encode(), digest_size=7).digest()
        return nested_callback_tag(int.from_bytes(digest, "big"))


def _code(callbacks: list[str]) -> int | None:
    """Return a number below PLACES for a chain of callbacks; None for one that has none.

    A single callback has its own number, below half of PLACES. Upper numbers hold a one and the
    Elias gamma code of each callback's number, so no two chains have the same.
    """
    if any(each[0] != "c" for each in callbacks):
        return None
    numbers = [int(each[1:]) for each in callbacks]
    half = PLACES // 2
    if len(numbers) == 1:
        return numbers[0] if numbers[0] < half else None
    bits = "1"
    for number in numbers:
        binary = f"{number + 1:b}"
        bits += "0" * (len(binary) - 1) + binary
    code = int(bits, 2)
    return half + code if code < half else None


class CallbackRun:
    """The state of a callback: its place, its thread's outer callback, and what it has posted."""

    def __init__(self, origin: Origin | None, sequencer: Any = None, depth: int = 0) -> None:
        """Create a run of a callback; `origin` is None if the callback's Future is not known.

        `sequencer` starts the callback. `depth` is the number of callbacks around its registration.
        """
        self.origin, self.sequencer, self.depth = origin, sequencer, depth
        self.lane: Any = None
        self.outer: CallbackRun | None = None
        """The run in which this one was started, on the same thread."""
        self.posted: Origin | None = None
        """The identity of the operation that was posted last."""
        self._places = itertools.count()
        self._thens = itertools.count()

    def __enter__(self) -> None:
        """Mark the calling thread as running this callback, until the end of the `with` block."""
        self.outer = _CURRENT.get()
        _CURRENT.set(self)
        running.add(self)

    def __exit__(self, *_: object) -> None:
        running.discard(self)
        _CURRENT.set(self.outer)
        self.outer = None

    def post(self) -> Origin:
        """Return the identity of the next operation that the callback posts.

        Raises UsageError for a callback of an unknown Future.
        """
        if self.origin is None:
            raise UsageError(
                "an operation was posted in a callback of a Future that slackline did not return, "
                "such as collect_all's: ranks cannot match it. Post it in a callback of a Work's "
                "Future, or after waiting for the Future"
            )
        self.posted = self.origin.step("p", next(self._places))
        return self.posted

    def then(self) -> Origin | None:
        """Return the identity of the callback that this callback registers next."""
        return None if self.origin is None else self.origin.step("t", next(self._thens))


_CURRENT: ContextVar[CallbackRun | None] = ContextVar("the callback of a Future", default=None)
current = _CURRENT.get
"""Return the callback that the calling thread runs, or None."""
running: set[CallbackRun] = set()
"""The callbacks that this process runs. The fast path looks here, which takes the least time."""


def tags_here(group: GroupIdentity) -> Iterator[int | None]:
    """Begin an operation that this thread posts on `group`; return the tags of its parts.

    The tags are None outside of callbacks. Raises the errors of `CallbackRun.post`.
    """
    callback = current()
    if callback is None:
        return itertools.repeat(None)
    origin = callback.post()
    parts = itertools.count()
    return ((origin.step("q", part) if part else origin).tag_on(group) for part in parts)


def placed(operations: Sequence[Operation], group: GroupIdentity) -> Sequence[Operation]:
    """Return the parts of an operation as this thread must post them on `group`.

    In a callback each collective gets its identity as its tag.
    """
    if current() is None:
        return operations
    tags = tags_here(group)
    return [each if each.tag is not None else each._replace(tag=next(tags)) for each in operations]


Key = tuple[int, int]
"""The position of an operation among those that the program posted outside of callbacks: the number
of collectives so far, and for a message the number of messages so far."""
Number = int | Key | Origin | None
"""The number of a collective, the key of a message, or the identity of an operation in a callback.
"""
Gates = tuple[Callable[[], "Future[Any]"], Callable[["Future[Any]"], None]]
"""A function that returns a new Future on an operation's devices, and a function that completes
such a Future when the operation has ended. They must not refer to the operation's own Future."""
_END_S = 3.0
untracked_then = torch._C.Future.then
"""Torch's own `then`, for callbacks that post nothing and have no turn."""
_torch_add_done_callback = torch._C.Future.add_done_callback
_torch_wait = torch._C.Future.wait


@dataclass(order=True, slots=True)
class _Entry:
    """A callback that waits for its start."""

    key: Key
    number: int
    start: Callable[[], None] = field(compare=False)
    ready: bool = field(default=False, compare=False)


class Lane:
    """Callbacks of one depth of nesting, which run one after another, in one order on all ranks."""

    def __init__(self, name: Key) -> None:
        self.name = name
        self.waiting: list[_Entry] = []
        self.runner: int | None = None
        """The thread that runs a callback of the lane."""
        self.latest: Key = (0, 0)
        """The position of the operation whose callback started last."""

    def due(self) -> bool:
        """Return whether the next callback can start."""
        return self.runner is None and bool(self.waiting) and self.waiting[0].ready


class Sequencer:
    """The callbacks of a group that wait for their start, and the thread that starts them.

    Callbacks of operations that the program posted start in the order of the posts. Callbacks that
    a callback registers start in the order of the registrations, apart from the former: they have a
    lane of their own. Each lane runs one callback at a time. There is a second thread only while
    callbacks of two lanes run, as a callback that blocks must not keep the other lane from running:
    another rank may run the two in the other order.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lanes: dict[Key, Lane] = {}
        self._numbers = itertools.count()
        self._free = 0
        """The number of threads that run no callback."""
        self._threads: set[threading.Thread] = set()
        self._closed = False

    def add(
        self,
        future: "Future[Any]",
        run: CallbackRun,
        key: Key,
        start: Callable[[], None],
        *,
        inline: bool,
    ) -> None:
        """Have `start()` called once `future` is complete, and it is the turn of the callback.

        `key` is the position of the operation. With `inline` the call is made at once if the future
        is complete, and no other callback of the lane runs or goes first.
        """
        entry = _Entry(key, next(self._numbers), start)
        with self._changed:
            lane = self._lane((run.depth, 0))
            if key < lane.latest:
                # The turn has passed: the program has registered the callback too late.
                lane = self._lane((0, entry.number + 1))
            run.lane = lane
            first = not lane.waiting or entry < lane.waiting[0]
            at_once = inline and future.done() and lane.runner is None and first
            if at_once:
                lane.runner, lane.latest = threading.get_ident(), key
            else:
                heapq.heappush(lane.waiting, entry)
        if at_once:
            self._run(lane, entry, None)
            return

        def ready(_: object) -> None:
            with self._changed:
                entry.ready = True
                self._wake()

        _torch_add_done_callback(future, ready)

    def run_until(self, future: "Future[Any]", lane: Lane) -> None:
        """Start due callbacks of `lane`, one of which calls, until `future` is complete."""

        def completed(_: object) -> None:
            with self._changed:
                self._changed.notify_all()

        _torch_add_done_callback(future, completed)
        me = threading.get_ident()
        while not future.done():
            entry = None
            with self._changed:
                before = lane.runner
                if before in (None, me) and lane.waiting and lane.waiting[0].ready:
                    entry = self._take(lane, me)
                elif not future.done():
                    self._changed.wait()
            if entry is not None:
                self._run(lane, entry, before)

    def close(self) -> None:
        """End the threads once all callbacks have run; give up the wait after some seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            threads = self._threads - {threading.current_thread()}
        until_s = time.monotonic() + _END_S
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _lane(self, name: Key) -> Lane:
        if name not in self._lanes:
            self._lanes[name] = Lane(name)
        return self._lanes[name]

    def _take(self, lane: Lane, runner: int) -> _Entry:
        entry = heapq.heappop(lane.waiting)
        lane.runner, lane.latest = runner, entry.key
        return entry

    def _wake(self) -> None:
        """Have threads start the callbacks that are due; called with the lock held."""
        due = sum(lane.due() for lane in self._lanes.values())
        if due > self._free:
            self._free += 1
            thread = threading.Thread(target=self._serve, name="slackline-callbacks", daemon=True)
            self._threads.add(thread)
            thread.start()
        self._changed.notify_all()

    def _serve(self) -> None:
        me = threading.get_ident()
        while True:
            with self._changed:
                while (lane := next(filter(Lane.due, self._lanes.values()), None)) is None:
                    waiting = any(each.waiting for each in self._lanes.values())
                    if self._free > 1 or (self._closed and not waiting):
                        self._free -= 1
                        self._threads.discard(threading.current_thread())
                        return
                    self._changed.wait()
                self._free -= 1
                entry = self._take(lane, me)
            try:
                self._run(lane, entry, None, freed=1)
            except BaseException:
                with self._changed:  # This thread ends with the error; another takes its place.
                    self._free -= 1
                    self._threads.discard(threading.current_thread())
                    self._wake()
                raise
            del entry, lane

    def _run(self, lane: Lane, entry: _Entry, before: int | None, freed: int = 0) -> None:
        """Start a callback; then have the lane be run by the thread `before`, and wake others."""
        try:
            entry.start()
        finally:
            with self._changed:
                self._free += freed
                lane.runner = before
                if before is None and not lane.waiting and lane.name != (0, 0):
                    del self._lanes[lane.name]
                self._wake()


class GroupCallbacks:
    """A group's identity, its sequencer, and the Works that Python dropped before any wait."""

    def __init__(self, size: int, most_dropped: int) -> None:
        self.identity = GroupIdentity(size)
        self.sequencer = Sequencer()
        self.dropped: deque[object] = deque(maxlen=most_dropped)


class _Tracked:
    """The identity of a Future that slackline returned, or of one that its `then` returned."""

    def __init__(
        self,
        origin: Origin | None,
        key: Key,
        sequencer: Sequencer,
        gates: Gates,
        *,
        depth: int,
        run: CallbackRun | None = None,
    ) -> None:
        """Create the identity of a Future: an operation's, or the result of the callback `run`.

        `key` and `gates` are those of the operation. `depth` is 0 outside of callbacks.
        """
        self.origin, self.key, self.sequencer = origin, key, sequencer
        self.gates, self.depth, self.run = gates, depth, run
        self._callbacks = itertools.count()

    def attach(self, future: "Future[Any]", callback: Callable[..., Any], register: Any) -> Any:
        """Have `callback(future)` called as `register` (torch's `then`, say) does, in its turn."""
        outer = current()
        if outer is not None and outer.sequencer is not None:
            origin, key, depth, sequencer = outer.then(), (0, 0), outer.depth + 1, outer.sequencer
        else:
            origin = self.origin and self.origin.step("c", next(self._callbacks))
            key, depth, sequencer = self.key, self.depth, self.sequencer
        run = CallbackRun(origin, sequencer, depth)

        def call(_: object) -> Any:
            with run:
                return callback(future)

        gate = self.gates[0]()
        result = register(gate, call)
        if result is not None:
            _futures[result] = _Tracked(origin, key, sequencer, self.gates, depth=depth, run=run)
        start = partial(self._open, gate, future)
        sequencer.add(future, run, key, start, inline=outer is None)
        return result

    def _open(self, gate: "Future[Any]", future: "Future[Any]") -> None:
        # Callbacks that slackline does not know, such as those of collect_all, run within.
        with CallbackRun(None):
            if self.run is None:
                self.gates[1](gate)
                return
            try:
                value = _torch_wait(future)
            except Exception:
                value = None  # The callback gets the error from `future`.
            gate.set_result(value)


_futures: "WeakKeyDictionary[Any, _Tracked]" = WeakKeyDictionary()


def track(
    future: "Future[Any]",
    number: Number,
    callbacks: GroupCallbacks,
    gates: Gates,
    joins: bool,
) -> None:
    """Have the callbacks of an operation's Future start in their turn, with an identity.

    `number` is the operation's. If `joins`, the Future belongs to several operations, and `number`
    to the first.
    """
    identity, key = callbacks.identity, (0, 0)
    if isinstance(number, int):
        origin, key = Origin(identity, number - 1), (number, 0)
    elif isinstance(number, tuple):
        origin, key = Origin(identity, number[1], message=True), number
    else:
        assert number is not None
        origin = number
    depth = 1 if origin.steps else 0
    if joins:
        origin = origin.step("w", 0)
    _futures[future] = _Tracked(origin, key, callbacks.sequencer, gates, depth=depth)


def _then(self: Any, callback: Callable[..., Any]) -> Any:
    """Call torch's `then`; the callback of an operation of slackline starts in its turn."""
    tracked = _futures.get(self)
    if tracked is None:
        return untracked_then(self, callback)
    return tracked.attach(self, callback, untracked_then)


def _add_done_callback(self: Any, callback: Callable[..., Any]) -> None:
    """Call torch's `add_done_callback`, with the callback's start in its turn as in `then`."""
    tracked = _futures.get(self)
    if tracked is None:
        _torch_add_done_callback(self, callback)
    else:
        tracked.attach(self, callback, _torch_add_done_callback)


def _wait(self: Any) -> Any:
    """Call torch's `wait`; a callback that waits for another callback runs those that are due.

    Raises UsageError for the result of a callback that waits, on this thread, for this one.
    """
    callback = current()
    if callback is not None and callback.sequencer is not None and not self.done():
        tracked = _futures.get(self)
        if tracked is not None and tracked.run is not None:
            _check_apart(tracked.run, callback)
        if tracked is None or tracked.run is not None:
            callback.sequencer.run_until(self, callback.lane)
    return _torch_wait(self)


def _check_apart(awaited: CallbackRun, by: CallbackRun) -> None:
    """Raise UsageError if the callback `awaited` can end only after the callback `by`."""
    each: CallbackRun | None = by
    while each is not None:
        if each is awaited:
            raise UsageError(
                f"callback {by.origin} waits for callback {awaited.origin}, which goes on only "
                "after it on the same thread"
            )
        each = each.outer


torch._C.Future.then = _then  # type: ignore[method-assign]
torch._C.Future.add_done_callback = _add_done_callback  # type: ignore[method-assign]
torch._C.Future.wait = _wait  # type: ignore[method-assign]
