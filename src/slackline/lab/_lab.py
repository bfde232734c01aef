"""The lab as a context manager: built on entry, removed on exit, also after an error."""

import os
import secrets
import signal
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from types import FrameType
from typing import NoReturn, Self

from slackline._process_start import started
from slackline.errors import UsageError
from slackline.faults import Plan
from slackline.lab import _names as names
from slackline.lab._commands import add_namespaces, configure_host, wire
from slackline.lab._executor import Executor, Injection, Warn
from slackline.lab._fabrics import Fabric, KernelFabric, PathCount, UserFabric, choose
from slackline.lab._options import LabOptions, check_name
from slackline.lab._ownership import Record, clean
from slackline.lab._ranks import Processes
from slackline.lab._system import execute, namespace_pids, require

__all__ = ["Lab"]


class Lab:
    """A network of hosts on one machine: namespaces with NICs of their own, joined by a switch.

        with Lab(LabOptions(hosts=4, rate=parse_rate("1Gbit"))) as lab:
            subprocess.run(lab.command(2, ["ping", "-c1", lab.address(3)]))

    Entering the context builds the lab, or raises UsageError if the machine lacks a tool or a
    permission, or if the name is taken. Leaving the context kills every process in the lab. SIGTERM
    raises SystemExit and so leaves the context too, unless the program handles the signal.
    """

    def __init__(
        self,
        options: LabOptions,
        *,
        name: str | None = None,
        faults: Plan | None = None,
        persistent: bool = False,
    ) -> None:
        """Check the options and choose the switch; entering the context builds the lab.

        With the switch "auto", the lab takes a switch that can do all `faults`. A `persistent` lab
        may be taken down by other processes, which send SIGTERM to its owner.
        """
        self.options = options
        self._persistent = persistent
        if name is None:
            name = f"{os.getpid()}-{secrets.token_hex(2)}"
        self.name = check_name(name)
        (faults or Plan()).check(options.hosts, options.nics)
        self.switch = choose(options.switch, (faults or Plan()).faults)
        """The chosen switch: "kernel" or "user"."""
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
            persistent=self._persistent,
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

    def __exit__(self, *_: object) -> None:
        self._executor = None
        self._stack.close()

    def command(self, host: int, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs `argv` on a host.

        The started process becomes the program itself, with the program's process id, signals and
        exit code.
        """
        self._check(host)
        return ["ip", "netns", "exec", names.namespace(self.name, host), *argv]

    def address(self, host: int, nic: int = 0) -> str:
        """Return the IPv4 address of a host's NIC, 10.77.<nic>.<host + 1>; the subnet is a /24."""
        self._check(host)
        if not 0 <= nic < self.options.nics:
            raise UsageError(
                f"a NIC must be between 0 and {self.options.nics - 1} in this lab, not {nic}"
            )
        return names.address(host, nic)

    def interfaces(self, host: int) -> tuple[str, ...]:
        """Return the interface names of the host's NICs, as seen on the host: ("eth0", "eth1")."""
        self._check(host)
        return tuple(names.interface(nic) for nic in range(self.options.nics))

    def cable(self, first: int, second: int, name: str) -> None:
        """Join two hosts by a wire of their own, with an interface `name` on both.

        The interfaces have no addresses: they are for packets that programs send themselves.
        """
        self._check(first)
        self._check(second)
        execute(wire(self.name, self.options, first, second, name))

    def inject(
        self,
        plan: Plan,
        *,
        processes: Processes | None = None,
        started: bool = True,
        warn: Warn | None = None,
    ) -> Injection:
        """Begin to carry out a fault plan, in addition to the plans that already run.

        Returns once the faults of time 0 are in force. Unless `started`, the plan's clock waits
        for `Injection.start`. A fault of rank r hits every process on host r, unless `processes`
        returns the process ids of each rank. `warn` receives a sentence for each fault that is left
        out because the fault was over before the lab could start it; see `Executor.inject`.

        Raises UsageError for a host or NIC that this lab does not have, and for a fault that its
        switch cannot do.
        """
        plan.check(self.options.hosts, self.options.nics)
        choose(self.switch, plan.faults)
        executor = self._up()
        return executor.inject(
            plan, processes=processes or self._processes, started=started, warn=warn
        )

    def _processes(self) -> dict[int, list[int]]:
        """Return the process ids on each host; host r runs the processes of rank r."""
        own = os.getpid()
        return {
            host: [pid for pid in namespace_pids(names.namespace(self.name, host)) if pid != own]
            for host in range(self.options.hosts)
        }

    def plans(self) -> tuple[Plan, ...]:
        """Return the fault plans that are being carried out."""
        return self._up().plans()

    def counters(self) -> tuple[PathCount, ...]:
        """Return the user-space switch's counters of each path that carried frames.

        Raises UsageError with the kernel switch, which does not count by path.
        """
        self._up()
        assert self._fabric is not None
        return self._fabric.counters()

    def _up(self) -> Executor:
        """Return the executor of fault plans; raise UsageError if the lab is not up."""
        if self._executor is None:
            raise UsageError(f"the lab {self.name!r} is not up")
        return self._executor

    def _check(self, host: int) -> None:
        if not 0 <= host < self.options.hosts:
            raise UsageError(
                f"a host must be between 0 and {self.options.hosts - 1} in this lab, not {host}"
            )


def _leave_on_sigterm(stack: ExitStack) -> None:
    """Make SIGTERM raise SystemExit until the stack closes, unless the program handles SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        return  # Only the main thread may set signal handlers.
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    signal.signal(signal.SIGTERM, _leave)
    stack.callback(signal.signal, signal.SIGTERM, signal.SIG_DFL)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
