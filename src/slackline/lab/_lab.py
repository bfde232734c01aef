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
from slackline.lab import _names as names
from slackline.lab._commands import add_namespaces, configure_host, kernel_up
from slackline.lab._options import LabOptions, check_name
from slackline.lab._ownership import Record, clean
from slackline.lab._system import execute, require, started

__all__ = ["Lab"]


class Lab:
    """Hosts on one machine: each a network namespace with its own NICs, joined by a switch.

        with Lab(LabOptions(hosts=4, rate=parse_rate("1Gbit"))) as lab:
            subprocess.run(lab.command(2, ["ping", "-c1", lab.address(3)]))

    Entering raises UsageError where the machine lacks something or the name is taken. Leaving ends
    every process in the lab; SIGTERM leaves too, as SystemExit, unless the program handles it.
    """

    def __init__(self, options: LabOptions, *, name: str | None = None) -> None:
        self.options = options
        if name is None:
            name = f"{os.getpid()}-{secrets.token_hex(2)}"
        self.name = check_name(name)
        self.switch = "kernel"
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        require()
        record = Record(
            name=self.name,
            hosts=self.options.hosts,
            nics=self.options.nics,
            rate=self.options.rate,
            switch=self.switch,
            pid=os.getpid(),
            started=started(os.getpid()) or 0,
        )
        with ExitStack() as stack:
            _leave_on_sigterm(stack)
            record.claim()
            stack.callback(clean, record)
            execute([add_namespaces(record.namespaces)])
            execute(kernel_up(self.name, self.options))
            for host in range(self.options.hosts):
                execute(configure_host(self.name, self.options, host))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
