"""The places of operations in their group: the order of calls, and identities in callbacks.

The order of the calls matches most operations of the ranks. The ranks run callbacks of Futures at
different times, so that this order cannot match the operations that callbacks post. An identity
names the way to such an operation, which is the same on all ranks:

    7        the group's collective 7           c0  its Future's first callback
    m2       the group's message 2              t1  the callback of the second `then` in a callback
    7.c0.p1  the second operation that the first callback of collective 7 posts
"""

import itertools
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum, auto
from hashlib import blake2b
from typing import Any

from slackline.errors import UsageError
from slackline.nic import PLACES, Operation, callback_tag, nested_callback_tag

__all__ = [
    "CallbackRun",
    "GroupIdentity",
    "Order",
    "Origin",
    "current",
    "placed",
    "running",
    "tags_here",
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
