"""The processes that make one drawn change of members, and the checks that each makes of its group.

All processes begin in one group, go apart into their old groups, make the change, and tell the
conductor how it has ended for them. The conductor's answer says what the others have.
"""

import gc
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta

import pytest
import torch
from change_cases import MUFFLED_S, STEPS, Case, End, Fault, Outcome
from change_steps import at_steps
from severed_sockets import Silence, end_connections
from torch import distributed as dist
from waiting import until

from slackline import backend, elastic
from slackline.elastic._handle import Handle
from slackline.errors import ClosedError, PeerError, SlacklineError, UsageError

__all__ = ["Board", "Member"]

TIMEOUT = timedelta(seconds=1)
"""The timeout of the change that has faults."""
AMPLE = timedelta(seconds=60)
"""The timeout of the other changes."""
LIMIT = timedelta(seconds=30)
"""The timeout of the operations of all groups."""
GRACE_S = 10.0
"""The time after the timeout within which a change must have ended. For two seconds a store that
does not answer may still do so; the rest is for a busy machine."""
SOON_S = 15.0
"""The time within which an operation of a broken group must fail: half of its timeout."""
SETTLED_S = 30.0
"""The time within which a process must have closed what the change has left: less than other
processes wait for it."""
STALE = 1000
"""The value in a message of an old group; the sender's rank is added to it."""
TAG = 5
LATE_TAG = 6
"""The tag of messages that a process sends in its old group when it has stood still."""


class Board:
    """Notes that the processes leave for each other in a file, which outlives each of them."""

    def __init__(self, path: str) -> None:
        self.store = dist.FileStore(path)

    @contextmanager
    def telling_of_failure(self, name: str) -> Iterator[None]:
        """Have the waits of the other processes fail if the body fails."""
        try:
            yield
        except BaseException as error:
            self.store.set("failed", f"{name} has failed: {error!r}")
            raise

    def post(self, key: str, value: str = "") -> None:
        self.store.set(key, value)

    def has(self, key: str) -> bool:
        if self.store.check(["failed"]):
            raise AssertionError(self._text("failed"))
        return bool(self.store.check([key]))

    def read(self, key: str) -> str:
        """Return the note under a key; block until there is one."""
        until(lambda: self.has(key), f"there is no note of {key!r}")
        return self._text(key)

    def _text(self, key: str) -> str:
        text: str = self.store.get(key).decode()
        return text


class Use:
    """The threads and descriptors of this process."""

    def __init__(self) -> None:
        gc.collect()
        # Which group has the thread that watches a link depends on the groups that were open when
        # it was made, so those threads are left out.
        watching = [each.name.startswith("slackline-health") for each in threading.enumerate()]
        self.threads = len(os.listdir("/proc/self/task")) - sum(watching)
        self.descriptors = Counter[str]()
        for each in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # That of the list itself is closed by now.
                name = os.readlink(f"/proc/self/fd/{each}")
                self.descriptors[name.partition(":[")[0]] += 1

    def within(self, other: "Use", more: int) -> bool:
        """Return whether this use is at most the other one, with `more` descriptors."""
        most = other.descriptors.total() + more
        return self.threads <= other.threads and self.descriptors.total() <= most

    def __str__(self) -> str:
        return f"{self.threads} threads and {dict(self.descriptors)}"


class Member:
    """The part of one process in a drawn change of members, and its checks."""

    def __init__(self, case: Case, me: int, path: str, *, torchs_group: bool) -> None:
        """Create the process `me` of a case; its notes are in the file `path`.

        With `torchs_group` the process has one group that torch lets it change in place.
        """
        self._case, self._me, self._board = case, me, Board(path)
        self._torchs_group = torchs_group
        self._due = [each for each in case.faults if each.process == me]
        self._handles: list[str] = []
        self._undo = ExitStack()
        self._resumed_s = 0.0
        self._under_way: list[dist.Work | None] = []

    def play(self) -> None:
        """Make all changes of the case, and check what this process can see of them."""
        case, board = self._case, self._board
        with board.telling_of_failure(f"process {self._me}"):
            first = self._begin()
            self._go_apart()
            self._meet("begin", range(case.count))
            with self._undo:
                outcome = self._change()
            board.post(f"outcome {self._me}", json.dumps(asdict(outcome)))
            self._go_on_without_the_held(json.loads(board.read("further")))
            end = End.decode(board.read("end"))
            self._check(end)
            self._use_the_number_again(outcome)
            self._meet("checked", end.outcomes)
            self._finish([each for each in case.order if each in end.outcomes], first)

    def _begin(self) -> Use:
        """Change to the first group, of all processes; return what this process then uses."""
        self._board.post(f"handle {self._me}", elastic.get_handle())
        everybody = range(self._case.count)
        self._handles = [self._board.read(f"handle {each}") for each in everybody]
        if self._torchs_group:
            dist.init_process_group(
                "slackline",
                store=dist.PrefixStore("torch", self._board.store),
                rank=self._me,
                world_size=self._case.count,
                timeout=LIMIT,
                enable_reconfigure=True,
            )
        self._come_together("first", self._case.order)
        used = Use()
        self._meet("counted", everybody)  # A process that goes on ends its links.
        return used

    def _go_apart(self) -> None:
        """Go into the old group of this process, and send a message that nobody receives yet."""
        group = self._case.groups[self._me]
        if group is None:
            if self._torchs_group:
                dist.group.WORLD.abort()  # The group has no connections until its next change.
            else:
                dist.destroy_process_group()
            return
        members = self._case.members(group)
        if self._case.connected[group] and not self._torchs_group:
            dist.destroy_process_group()
            dist.init_process_group(
                "slackline",
                store=dist.PrefixStore(f"group {group}", self._board.store),
                rank=members.index(self._me),
                world_size=len(members),
                timeout=LIMIT,
            )
        else:
            self._reconfigure(f"old {group}", members, AMPLE)
        works(TAG)
        if len(members) > 1:
            rank = dist.get_rank()
            dist.send(torch.tensor([STALE + rank]), (rank + 1) % len(members), tag=TAG)

    def _change(self) -> Outcome:
        """Make the change that has faults, if this process is in the list."""
        case = self._case
        if self._me not in case.listed:
            self._act(STEPS[0])
            if self._resumed_s and case.groups[self._me] is not None:
                self._under_way = send_late()
            return Outcome(new=False)
        listed = case.wrong if case.fault("misled", of=self._me) else case.listed
        words, begun_s = [""], time.monotonic()
        try:
            with at_steps(self._act, words.append):
                self._act(STEPS[0])
                begun_s = time.monotonic()
                self._reconfigure("with faults", listed, TIMEOUT)
            outcome = Outcome(new=True, word=words[-1])
        except (SlacklineError, KeyboardInterrupt) as error:
            kind, text = type(error).__name__, str(error)
            outcome = Outcome(new=False, kind=kind, text=text, word=words[-1])
        ended_s = time.monotonic()
        limit_s = max(begun_s + TIMEOUT.total_seconds(), self._resumed_s) + GRACE_S
        assert ended_s < limit_s, f"the change took {ended_s - begun_s} s: {outcome}"
        return outcome

    def _go_on_without_the_held(self, moved: list[int]) -> None:
        """Make a further change with the processes `moved`, if this process is one of them."""
        if self._me in moved:
            self._reconfigure("further", moved, AMPLE)
            works(TAG)
            self._board.post(f"moved {self._me}")

    def _check(self, end: End) -> None:
        """Check that the group of this process works, or that its operations raise PeerError."""
        case, me = self._case, self._me
        old = me not in end.moved and not end.outcomes[me].new
        none = old and case.groups[me] is None
        aborted = old and case.groups[me] in end.aborted and case.fault("aborts", of=me)
        # A group of a failed change would stay in the engine until the next change.
        assert len(backend.create._groups) == (0 if none or aborted else 1)
        if none:
            assert dist.is_initialized() == self._torchs_group
        elif case.works(me, end):
            if old:
                receive_the_old_message()
            works(*((TAG,) if old else (TAG, LATE_TAG)))
        elif aborted:
            fails(UsageError if self._torchs_group else ClosedError)
        else:
            fails(PeerError)

    def _use_the_number_again(self, outcome: Outcome) -> None:
        """Check that the number of the change cannot be used again, however the change ended."""
        if self._me in self._case.listed and outcome.kind != "KeyboardInterrupt":
            with pytest.raises(UsageError, match="already used"):
                self._reconfigure("with faults", self._case.listed, TIMEOUT)

    def _finish(self, left: list[int], first: Use) -> None:
        """Change to the last group, of all that are left; compare what this process uses."""
        self._come_together("last", left)
        gc.collect()  # It may end connections to other processes.
        self._meet("collected", left)
        # The two connections that the first one keeps, if another process than before has them.
        more = 2 if self._me in left[1:2] and self._me != self._case.order[1] else 0
        deadline_s = time.monotonic() + SETTLED_S
        until(lambda: Use().within(first, more) or time.monotonic() > deadline_s, "no limit")
        last = Use()
        assert last.within(first, more), f"it uses {last}, and at first {first}"
        until(lambda: backend.counters()["withheld_bytes"] == 0, "memory is withheld for ever")
        self._meet("compared", left)
        dist.destroy_process_group()

    def _come_together(self, name: str, processes: Sequence[int]) -> None:
        """Change to a group of these processes, so that each has the same connections every time.

        A process keeps its connections to the process at which its latest change met, unless that
        was the process itself. Two processes therefore take turns.
        """
        for place, turn in enumerate(((*processes[1:], processes[0]), processes)):
            self._reconfigure(f"{name} {place}", turn, AMPLE)
            works(TAG, LATE_TAG)
        self._meet(name, processes)

    def _reconfigure(self, number: str, processes: Sequence[int], timeout: timedelta) -> None:
        handles = [self._handles[each] for each in processes]
        placed = elastic.reconfigure(number, handles, timeout=timeout)
        assert (placed.rank, placed.size) == (list(processes).index(self._me), len(processes))
        assert (dist.get_rank(), dist.get_world_size()) == (placed.rank, placed.size)
        dist.group.WORLD.set_timeout(LIMIT)

    def _meet(self, name: str, processes: Iterable[int]) -> None:
        self._board.post(f"{name} {self._me}")
        for each in processes:
            self._board.read(f"{name} {each}")

    def _act(self, step: str) -> None:
        """Cause the fault of this process that is due at a step."""
        due = [each for each in self._due if each.step == step]
        self._due = [each for each in self._due if each not in due]
        for fault in due:
            self._board.post(f"reached {self._me}")
            self._cause(fault)

    def _cause(self, fault: Fault) -> None:
        leader = self._case.listed[0]
        port, served = Handle.decode(self._handles[leader]).port, leader == self._me
        match fault.kind:
            case "dies":
                self._board.post(f"dying {self._me}", str(os.getpid()))
                os.kill(os.getpid(), signal.SIGKILL)
            case "stops" | "sleeps" | "pauses":
                self._board.post(f"stopped {self._me}", str(os.getpid()))
                os.kill(os.getpid(), signal.SIGSTOP)
                self._board.read(f"continued {self._me}")  # The signal may come a bit later.
                self._resumed_s = time.monotonic()
            case "cut":
                end_connections(port, served=served)
            case "silent":
                self._undo.callback(Silence(port, served=served).end, cut=True)
            case "muffled":
                silence = Silence(port, served=served)
                moment = threading.Timer(MUFFLED_S, silence.end, kwargs={"cut": False})
                moment.start()
                self._undo.callback(moment.join)
            case "aborts":
                dist.group.WORLD.abort()
                self._board.post(f"aborted {self._case.groups[self._me]}")
            case "interrupted":
                raise KeyboardInterrupt
            case "late":
                self._board.read("the others have returned")
            case "misled":
                pass  # The list of its call is another one.


def works(*tags: int) -> None:
    """Check that the default group reduces short and long tensors, and sends messages."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in (3, 1 << 16):
        tensor = torch.full((count,), rank + 1.0)
        dist.all_reduce(tensor)
        assert tensor.unique().tolist() == [size * (size + 1) / 2]
    for tag in tags:
        for distance in range(1, size):  # All pairs of ranks, so that each link is made.
            sent = dist.isend(torch.tensor([rank]), (rank + distance) % size, tag=tag)
            other = (rank - distance) % size
            assert received(other, tag) == other
            sent.wait()


def received(rank: int, tag: int) -> int:
    """Return the next message of a rank."""
    got = torch.empty(1, dtype=torch.int64)
    dist.recv(got, rank, tag=tag)
    return int(got.item())


def others() -> list[int]:
    """Return the other ranks of the default group."""
    return [rank for rank in range(dist.get_world_size()) if rank != dist.get_rank()]


def send_late() -> list[dist.Work | None]:
    """Send messages to all others, as a process does that has stood still during a change.

    They may have left the group. Returns the messages that are under way.
    """
    under_way = []
    for count in (1, 1 << 16):
        for rank in others():
            with suppress(PeerError):
                late = torch.full((count,), -1)
                under_way.append(dist.isend(late, rank, tag=LATE_TAG))
    return under_way


def receive_the_old_message() -> None:
    """Check that the message which was sent before the change has not been lost."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if size > 1:
        assert received((rank - 1) % size, TAG) == STALE + (rank - 1) % size


def fails(kind: type[SlacklineError]) -> None:
    """Check that the operations of the default group fail soon, with an error of this kind."""
    begun_s = time.monotonic()
    for rank in others():
        with suppress(kind):  # It leaves at once if its receiver lives and is still in the group.
            dist.send(torch.tensor([-1]), rank, tag=TAG)
    with pytest.raises(kind):
        dist.all_reduce(torch.ones(3))
    took_s = time.monotonic() - begun_s
    assert took_s < SOON_S, f"the operations took {took_s} s to fail"
