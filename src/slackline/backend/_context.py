"""The factory of a process's groups, which share one NIC engine.

The engine is opened with the first group and closed with the last.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from slackline import errors
from slackline._process_end import process_end
from slackline.backend._debug_answers import links_of, register_answers
from slackline.backend._group import SlacklineGroup
from slackline.backend._store_prefix import (
    Membership,
    agree_on_prefix,
    first_membership,
    watched_store,
)
from slackline.backend._torch import BackendOptions, PrefixStore, Store, renumber, time_limit
from slackline.env import Environment
from slackline.errors import SlacklineError, UsageError
from slackline.nic import Group, Introduction, NativeNic, Nic, NicOptions, clean_up, limits_named
from slackline.nic import Store as NicStore
from slackline.nic.connect import tell_failure

if TYPE_CHECKING:
    from slackline.backend._plain_steps import PlainSteps
    from slackline.backend.flight import FlightRecorder

__all__ = ["Context", "create", "links", "open_group"]


MakeGroup = Callable[[Group, Store, Callable[[], None]], SlacklineGroup]
_GRACE_AT_EXIT_S = 3.0
"""The time that all groups together have for their posted operations at the end of the process.
With the time that the engine takes for its own end, the process ends within five seconds."""


class Context:
    """A factory of process groups, which owns this process's engine and tracks its groups."""

    def __init__(self, open_nic: Callable[[NicOptions | None], Nic]) -> None:
        """Create a factory of process groups, still without an engine.

        `open_nic` opens the engine for the first group; its argument is that group's `pg_options`.
        """
        self._open_nic = open_nic
        self._begin()
        # Engine and groups belong to the parent process; a forked process opens its own.
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._nic: Nic | None = None
        self._options: NicOptions | None = None
        self._steps: PlainSteps | None = None
        self._opening = 0
        self._groups: set[Group] = set()
        self._made: WeakSet[SlacklineGroup] = WeakSet()
        self._next: Group | None = None

    def __call__(
        self,
        opts: BackendOptions,
        options: NicOptions | None = None,
        make: MakeGroup = SlacklineGroup,
    ) -> SlacklineGroup:
        """Create a group from torch's `opts` and the user's `pg_options` in `options`.

        `make` constructs torch's process group on the engine's Group. Blocks until all ranks have
        joined the group, or raises TimeoutError. Raises UsageError for another backend's options,
        and if `opts` ask for a group that can be reconfigured: slackline.elastic makes those that
        have no other backend beside slackline.
        """
        if getattr(opts, "enable_reconfigure", False):
            raise UsageError(
                "a group with several backends, or under another backend's name, cannot be "
                'reconfigured (enable_reconfigure): use init_process_group("slackline", '
                "enable_reconfigure=True)"
            )
        if options is not None and not isinstance(options, NicOptions):
            raise UsageError(
                "the pg_options of a slackline group are slackline.nic.NicOptions, not "
                f"{type(options).__module__}.{type(options).__qualname__}"
            )
        with self._lock:
            group, self._next = self._next, None
            if group is not None:
                self._groups.add(group)
        if group is not None:
            return self._make(make, group, opts)
        opts.timeout = time_limit(opts.timeout)
        deadline_s = time.monotonic() + opts.timeout.total_seconds()
        with watched_store(opts.store, opts.group_size):
            life = agree_on_prefix(opts.store, opts.group_rank, opts.group_size, deadline_s)
            store = PrefixStore(life, opts.store)
            group = self._open(store, opts, options, deadline_s)
        try:
            made = self._make(make, group, opts)
        except BaseException as error:
            clean_up(error, partial(group.close, timedelta()), partial(self._release, group))
            raise
        made.membership = first_membership(group, store)
        return made

    def reopen(
        self, store: NicStore, rank: int, size: int, *, timeout: timedelta, opening: timedelta
    ) -> Group:
        """Close all groups of the running engine, and open a new one on the existing links.

        Operations that are still posted in the closed groups fail. `timeout` limits each operation
        of the new group, `opening` limits the opening itself.
        """
        with self._lock:
            nic, groups = self._nic, list(self._groups)
        if nic is None:
            raise UsageError("the engine is closed: call shrink before destroy_process_group")
        for group in groups:
            group.close(timedelta())
        return nic.open_group(store, rank, size, timeout=timeout, opening=opening, anew=False)

    def open_beside(
        self,
        store: NicStore,
        rank: int,
        size: int,
        *,
        timeout: timedelta,
        opening: timedelta,
        introduction: Introduction,
        options: NicOptions | None = None,
    ) -> Group:
        """Open a group beside those that are open; the first call opens the engine with `options`.

        The plans of its collectives are those of earlier groups of the ranks' engines, which have
        timed them; for this and for `introduction` see `Nic.open_group`.

        The other arguments are as in `reopen`. Torch gets the group by `handing_over` or
        `hand_over`; see `drop`.
        """
        with limits_named(rank):
            nic = self._acquire(options)
        try:
            group = nic.open_group(
                store,
                rank,
                size,
                timeout=timeout,
                opening=opening,
                anew=False,
                introduction=introduction,
            )
        except BaseException as error:
            clean_up(error, partial(self._opened, None))
            raise
        self._opened(group)
        return group

    def hand_over(self, group: Group, made: SlacklineGroup, membership: Membership) -> None:
        """Have a process group of torch that has ended run on `group` from now on.

        `membership` has the members of `group`, and the store through which they agreed.
        """
        store = membership.store
        assert isinstance(store, Store)
        made.run_on(group, store, partial(self._release, group))
        made.job_ranks = range(group.size)
        made.membership = membership
        made.open_beside = self
        renumber(made, group.size)
        with self._lock:
            self._made.add(made)

    def drop(self, group: Group) -> None:
        """Close a group that torch does not know, with its posted operations."""
        group.close(timedelta())
        self._release(group)

    def close_others(self, kept: Group) -> None:
        """Close all groups but one; their posted operations fail."""
        with self._lock:
            groups = [group for group in self._groups if group is not kept]
        for group in groups:
            group.close(timedelta())

    def settle(self) -> None:
        """Block until the operations of all groups on accelerators have ended.

        Raises the error of an operation that failed after a stream had begun to wait for the
        operation.
        """
        with self._lock:
            made = list(self._made)
        for group in made:
            group.settle()

    def errors_are_known(self) -> None:
        """Have the ends of all groups raise no error of an operation on an accelerator."""
        with self._lock:
            made = list(self._made)
        for group in made:
            group.errors_are_known()

    def open_groups(self) -> list[SlacklineGroup]:
        """Return the process groups that are open in this process, in no order."""
        with self._lock:
            return [group for group in self._made if group.nic in self._groups]

    def recorder(self) -> "FlightRecorder":
        """Return the flight recorder of the running engine.

        Raises UsageError if no group is open, or if no variable has asked for the recorder.
        """
        with self._lock:
            nic = self._nic
        if nic is None:
            raise UsageError("there is no flight recorder: this process has no open group")
        from slackline.backend.flight import RecordedNic  # Few programs ask for the recorder.

        if not isinstance(nic, RecordedNic):
            raise UsageError(
                "the flight recorder is off: set SLACKLINE_FLIGHT_RECORDER to a directory, or "
                "SLACKLINE_FLIGHT_RECORDER_ENTRIES to a number, before the first group opens"
            )
        return nic.recorder

    def abort(self, reason: str) -> None:
        """Abort all posted operations of all groups, on this rank and on its peers."""
        with self._lock:
            groups = list(self._groups)
        for group in groups:
            group.abort(reason)

    @contextmanager
    def handing_over(self, group: Group) -> Iterator[None]:
        """Have the next process group that torch creates use `group`; keep the engine open."""
        with self._lock:
            self._opening += 1
            self._next = group
        try:
            yield
        finally:
            self._opened(None)

    def _open(
        self, store: Store, opts: BackendOptions, options: NicOptions | None, deadline_s: float
    ) -> Group:
        rank = opts.group_rank
        try:
            with limits_named(rank):
                nic = self._acquire(options)
        except BaseException as error:
            if opts.group_size > 1:
                tell_failure(store, rank, error)
            raise
        try:
            group = nic.open_group(
                store,
                rank,
                opts.group_size,
                timeout=opts.timeout,
                opening=timedelta(seconds=max(0.0, deadline_s - time.monotonic())),
                members=tuple(opts.global_ranks_in_group) or None,
            )
        except BaseException as error:
            clean_up(error, partial(self._opened, None))
            raise
        self._opened(group)
        return group

    def _make(self, make: MakeGroup, group: Group, opts: BackendOptions) -> SlacklineGroup:
        made = make(group, opts.store, partial(self._release, group))
        made.open_beside = partial(self, make=make)
        made.job_ranks = tuple(opts.global_ranks_in_group) or range(group.size)
        with self._lock:
            self._made.add(made)
        return made

    def _acquire(self, options: NicOptions | None) -> Nic:
        with self._lock:
            if self._nic is None:
                self._nic = self._open_nic(options)
                environment = Environment.read()
                if environment.telemetry is not None or environment.log is not None:
                    # Here and not above: without telemetry and log no rank needs the module.
                    from slackline.backend._plain_steps import plain_steps

                    plain_steps.begin(self._nic.stepped)
                    self._steps = plain_steps
                self._options = options
                process_end.add(self._end_of_process)
            elif options is not None and options != self._options:
                raise UsageError(
                    f"the engine runs with {self._options}; a later group cannot ask for {options}"
                )
            self._opening += 1
            return self._nic

    def _opened(self, group: Group | None) -> None:
        with self._lock:
            self._opening -= 1
            if group is not None:
                self._groups.add(group)
        self._close_unused()

    def _release(self, group: Group) -> None:
        with self._lock:
            self._groups.discard(group)
        self._close_unused()

    def _close_unused(self) -> None:
        with self._lock:
            if self._groups or self._opening:
                return
            nic, self._nic = self._nic, None
            steps, self._steps = self._steps, None
        if steps is not None:
            steps.end()
        if nic is not None:
            process_end.remove(self._end_of_process)
            nic.close()

    def _end_of_process(self) -> None:
        """Close the groups still open at exit; their posted operations share a few seconds."""
        with self._lock:
            groups = list(self._groups)
        _hush_daemon_threads()
        until_s = time.monotonic() + _GRACE_AT_EXIT_S
        for group in groups:
            try:
                group.close(timedelta(seconds=max(0.0, until_s - time.monotonic())))
            except KeyboardInterrupt:
                until_s = 0.0  # The user does not want to wait.
            finally:
                self._release(group)


def _hush_daemon_threads() -> None:
    """Let daemon threads end without a message if their operation fails from now on.

    The process is ending, and the interpreter is about to stop these threads anyway.
    """
    shown = threading.excepthook

    def show(args: threading.ExceptHookArgs) -> None:
        daemon = args.thread is not None and args.thread.daemon
        if not (daemon and issubclass(args.exc_type, SlacklineError)):
            shown(args)

    threading.excepthook = show


def open_native(options: NicOptions | None) -> Nic:
    """Open the native engine with `options`, or with options from the environment variables.

    Options that do not say where to listen take this from the environment, because it depends on
    the job's hosts and not on the program. The engine's operations are recorded if a variable asks
    for the flight recorder.
    """
    environment = Environment.read()
    options = options or NicOptions.from_env(environment)
    if options.listen is None:
        options = replace(options, listen=environment.listen)
    nic = NativeNic(options)
    if not environment.records_flight:
        return nic
    try:
        # Here and not above: without a recorder no rank needs its modules.
        from slackline.backend.flight import recorded_nic

        return recorded_nic(nic, environment)
    except BaseException as error:
        clean_up(error, nic.close)
        raise


def point_to_help() -> None:
    """Have the hook for uncaught exceptions add a note to each error of slackline.

    The note names the command that explains the error. Errors that torch's C++ code has passed on
    as RuntimeErrors get it too; an error that the script catches keeps its text.
    """
    former = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # Here and not above: most ranks meet no error.
        from slackline.backend._failures import failure_of

        found = failure_of(error)
        if found is not None:
            kinds = (each.__name__ for each in type(found).__mro__)
            name = next(each for each in kinds if each in errors.__all__)
            error.add_note(f"{errors.HELP_NOTE}{name}: what is dead now, and what to do")
        former(kind, error, trace)

    sys.excepthook = show


create = Context(open_native)
"""The factory that torch calls for each new group of this process; owner of the engine."""
# Every rank that can open a group answers: torch's debug server asks all ranks, and not only those
# whose programs have imported slackline's pages.
register_answers(create)
point_to_help()


def open_group(store: Store, rank: int, size: int, *, timeout: timedelta) -> SlacklineGroup:
    """Open a process group of `size` processes that meet in `store`, and return it.

    The group is for libraries that make groups by themselves, such as torchft: torch needs no
    default group, and does not know the group by a name. `timeout` limits the opening and each
    operation. Blocks until all ranks have made the call, or raises TimeoutError. The caller ends
    the group with `shutdown` or `abort`.
    """
    opts = BackendOptions()
    opts.store = store
    opts.group_rank = rank
    opts.group_size = size
    opts.timeout = timeout
    return create(opts)


def links() -> dict[str, Any]:
    """Return the state of every rail of this process's open groups, for JSON.

    "links" has a dictionary for each rail: the fields of `slackline.records.LinkReport`, and the
    rates "sent_bytes_per_s" and "received_bytes_per_s" since the previous call. "outward" and
    "inward" are the sentences of the health monitor; they are empty for shared memory.
    """
    return links_of(create)
