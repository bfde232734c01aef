"""The lab itself: up on entry, down on exit, whatever happens in between."""

import os
import secrets
import signal
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from types import FrameType, TracebackType
from typing import NoReturn, Self

from slackline.errors import UsageError
from slackline.faults import Plan
from slackline.lab import _names as names
from slackline.lab._commands import add_namespaces, configure_host
from slackline.lab._executor import Executor, Injection
from slackline.lab._fabrics import Fabric, KernelFabric, PathCount, UserFabric, choose
from slackline.lab._options import LabOptions, check_name
from slackline.lab._ownership import Record, clean
from slackline.lab._ranks import Processes
from slackline.lab._system import execute, namespace_pids, require, started

__all__ = ["Lab"]


class Lab:
    """Hosts on one machine: each a network namespace with its own NICs, joined by a switch.

        with Lab(LabOptions(hosts=4, rate=parse_rate("1Gbit"))) as lab:
            subprocess.run(lab.command(2, ["ping", "-c1", lab.address(3)]))

    Entering raises UsageError where the machine lacks something or the name is taken. Leaving ends
    every process in the lab; SIGTERM leaves too, as SystemExit, unless the program handles it.
    """

    def __init__(
        self,
        options: LabOptions,
        *,
        name: str | None = None,
        faults: Plan | None = None,
        standing: bool = False,
    ) -> None:
        """`faults` are what the automatic choice of the switch must be able to do. A `standing` lab
        is one that others may ask its owner to take down, by SIGTERM.
        """
        self.options = options
        self._standing = standing
        if name is None:
            name = f"{os.getpid()}-{secrets.token_hex(2)}"
        self.name = check_name(name)
        (faults or Plan()).check(options.hosts, options.nics)
        self.switch = choose(options.switch, (faults or Plan()).faults)
        """kernel or user."""
        self._fabric: Fabric | None = None
        self._executor: Executor | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        require()
        record = Record(
            name=self.name,
            hosts=self.options.hosts,
            nics=self.options.nics,
            rate=self.options.rate,
            switch=self.switch,
            standing=self._standing,
            pid=os.getpid(),
            started=started(os.getpid()) or 0,
        )
        with ExitStack() as stack:
            _leave_on_sigterm(stack)
            record.claim()
            stack.callback(clean, record)
            execute([add_namespaces(record.namespaces)])
            record.write_hosts()
            kinds: dict[str, type[Fabric]] = {"kernel": KernelFabric, "user": UserFabric}
            fabric = stack.enter_context(kinds[self.switch](self.name, self.options))
            for host in range(self.options.hosts):
                execute(configure_host(self.name, self.options, host))
            self._fabric, self._executor = fabric, Executor(fabric.apply)
            stack.callback(self._executor.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._executor = None
        self._stack.close()

    def command(self, host: int, argv: Sequence[str]) -> list[str]:
        """`argv` as it runs on a host.

        What it starts is the program itself: process id, signals and exit code are the program's.
        """
        self._check(host)
        return ["ip", "netns", "exec", names.namespace(self.name, host), *argv]

    def address(self, host: int, nic: int = 0) -> str:
        """The IPv4 address of a host's NIC, 10.77.<nic>.<host + 1>; the subnet is a /24."""
        self._check(host)
        if not 0 <= nic < self.options.nics:
            raise UsageError(
                f"a NIC must be between 0 and {self.options.nics - 1} in this lab, not {nic}"
            )
        return names.address(host, nic)

    def interfaces(self, host: int) -> tuple[str, ...]:
        """The host's NICs as programs on it know them: ("eth0", "eth1")."""
        self._check(host)
        return tuple(names.interface(nic) for nic in range(self.options.nics))

    def inject(
        self, plan: Plan, *, processes: Processes | None = None, started: bool = True
    ) -> Injection:
        """Carry out a plan from now on, beside those that there are; returns when what starts at 0
        is in force. Unless `started`, the plan's time begins with `Injection.start`.

        A fault of a rank hits every process on the host with its number, unless `processes` tells
        which ones are each rank's. Raises UsageError for what is not in this lab or what its
        switch cannot do.
        """
        plan.check(self.options.hosts, self.options.nics)
        choose(self.switch, plan.faults)
        executor = self._up()
        return executor.inject(plan, processes=processes or self._processes, started=started)

    def _processes(self) -> dict[int, list[int]]:
        own = os.getpid()
        return {
            host: [pid for pid in namespace_pids(names.namespace(self.name, host)) if pid != own]
            for host in range(self.options.hosts)
        }

    def plans(self) -> tuple[Plan, ...]:
        """The plans that are being carried out."""
        return self._up().plans()

    def counters(self) -> tuple[PathCount, ...]:
        """What the user switch has counted, by path; paths that nothing took are absent."""
        self._up()
        assert self._fabric is not None
        return self._fabric.counters()

    def _up(self) -> Executor:
        if self._executor is None:
            raise UsageError(f"the lab {self.name!r} is not up")
        return self._executor

    def _check(self, host: int) -> None:
        if not 0 <= host < self.options.hosts:
            raise UsageError(
                f"a host must be between 0 and {self.options.hosts - 1} in this lab, not {host}"
            )


def _leave_on_sigterm(stack: ExitStack) -> None:
    """Turns SIGTERM into SystemExit until the stack closes, where nobody else handles it."""
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may; a lab of another thread is its program's to end
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    signal.signal(signal.SIGTERM, _leave)
    stack.callback(signal.signal, signal.SIGTERM, signal.SIG_DFL)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
