"""Execution of fault plans: a thread that applies each fault at its time and removes it again."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Self

from slackline.errors import UsageError
from slackline.faults import Effects, NetworkState, Plan, Scheduler
from slackline.lab._ranks import Processes, Ranks
from slackline.units import show_time

__all__ = ["Executor", "Injection", "Warn"]

Network = Callable[[Mapping[tuple[int, int], Effects], Mapping[tuple[int, int], Effects]], None]
"""A function that applies these link faults, by (from, to), and NIC faults, by (host, NIC), and
removes all others."""

Warn = Callable[[str], None]
"""A function that receives a sentence for each fault that was left out."""

_log = logging.getLogger("slackline.lab")


class Injection:
    """A fault plan that is being carried out. As a context manager it ends the plan on exit."""

    def __init__(self, executor: "Executor", plan: Plan, ranks: Ranks | None, warn: Warn) -> None:
        self.plan = plan
        self._scheduler = Scheduler(plan)
        self._executor = executor
        self._ranks = ranks
        self._warn = warn
        self._over = threading.Event()

    @property
    def started(self) -> bool:
        """Whether the plan's clock runs."""
        return self._scheduler.started

    def start(self) -> None:
        """Start the plan's clock; do nothing if the clock already runs.

        Faults that begin at time 0 are in force even before the clock starts.
        """
        with self._executor.changed:
            self._scheduler.start(self._executor._clock())
            self._executor.changed.notify()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the plan is over or `timeout` has passed; return whether the plan is over.

        A plan without an end is over once it is withdrawn. Raises the error that
        stopped the execution of the plans.
        """
        over = self._over.wait(None if timeout is None else timeout.total_seconds())
        self._executor.check()
        return over

    def withdraw(self) -> None:
        """End the plan now and return once none of its faults is in force."""
        self._executor.forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.withdraw()


class Executor:
    """A thread that carries out any number of fault plans at once; the plans' effects add up.

    The owner must call `close`.
    """

    def __init__(
        self, network: Network | None = None, *, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """Start the thread; `clock` returns the time in nanoseconds, which must not decrease."""
        self.changed = threading.Condition()
        self._clock = clock
        self._network = network
        self._injections: list[Injection] = []
        self._in_force = NetworkState()
        self._failure: Exception | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="slackline-faults", daemon=True)
        self._thread.start()

    def inject(
        self,
        plan: Plan,
        *,
        processes: Processes | None = None,
        started: bool = True,
        warn: Warn | None = None,
    ) -> Injection:
        """Begin to carry out a fault plan and return once its faults of time 0 are in force.

        Unless `started`, the plan's clock waits for Injection.start. Faults of ranks (kill, stop,
        slow) need `processes`, which returns the process ids of each rank.

        On a busy machine the executor may wait for a core longer than a fault lasts. Such a fault
        is left out, and `warn` receives a sentence with the fault and the delay, in the executor's
        thread; by default the logger `slackline.lab` logs the sentence as a warning.
        """
        if plan.of_ranks and processes is None:
            raise UsageError(f"{str(plan.of_ranks)!r} needs the process ids of the ranks")
        if plan.of_network and self._network is None:
            raise UsageError(f"{str(plan.of_network)!r} needs a network; there is none here")
        ranks = None if processes is None else Ranks(processes)
        injection = Injection(self, plan, ranks, warn or _log.warning)
        with self.changed:
            self._injections.append(injection)
            if started:
                injection._scheduler.start(self._clock())
            self._step()
            self.changed.notify()
        self.check()
        return injection

    def forget(self, injection: Injection) -> None:
        """End a plan and remove its faults; do nothing if the plan has already ended."""
        with self.changed:
            if injection in self._injections:
                self._injections.remove(injection)
                self._step()
                self._end(injection)
                self.changed.notify()
        self.check()

    def plans(self) -> tuple[Plan, ...]:
        """Return the plans that are being carried out."""
        with self.changed:
            return tuple(injection.plan for injection in self._injections)

    def check(self) -> None:
        """Raise the error that stopped the execution of the plans, if any."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """End all plans and the thread."""
        with self.changed:
            self._closed = True
            self.changed.notify()
        self._thread.join()
        with self.changed:
            ended = tuple(self._injections)
            self._injections.clear()
            self._step()
            for injection in ended:
                self._end(injection)

    def _run(self) -> None:
        with self.changed:
            while not self._closed:
                due_ns = self._step()
                left_ns = None if due_ns is None else due_ns - self._clock()
                if left_ns is None or left_ns > 0:
                    self.changed.wait(None if left_ns is None else left_ns / 1e9)

    def _step(self) -> int | None:
        """Apply the faults that are due now; return the time of the next change or None.

        After an error, all plans count as over, and `check` raises the error.
        """
        if self._failure is not None:
            return None
        try:
            return self._act()
        except Exception as error:  # This thread has no caller: `check` raises the error.
            self._failure = error
            for injection in self._injections:
                injection._over.set()
            return None

    def _act(self) -> int | None:
        """Apply the faults of all plans at this moment; return the time of the next change."""
        now_ns = self._clock()
        network = NetworkState()
        due: list[int] = []
        ended: list[Injection] = []
        for injection in self._injections:
            state = injection._scheduler.advance(now_ns)
            for fault in state.left_out:
                injection._warn(
                    f"the fault {str(fault)!r} is left out: the thread that starts faults was late "
                    f"by {show_time(state.at_ns - fault.start_ns)}"
                )
            network |= state.network
            if injection._ranks is not None:
                again_ns = injection._ranks.apply(state.at_ns, state.ranks)
                if again_ns is not None:
                    due.append(now_ns - state.at_ns + again_ns)
            if state.next_ns is not None:
                due.append(state.next_ns)
            if state.over:
                ended.append(injection)
        if network != self._in_force:
            self._in_force = network
            if self._network is not None:
                self._network(network.pairs, network.nics)
        # Not earlier: whoever waits for the end of a plan may use the network at once.
        for injection in ended:
            self._injections.remove(injection)
            self._end(injection)
        return min(due, default=None)

    def _end(self, injection: Injection) -> None:
        """Continue the processes that a plan has stopped, and mark the plan as over."""
        if injection._ranks is not None:
            injection._ranks.close()
        injection._over.set()
