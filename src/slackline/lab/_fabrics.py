"""The two switches that a lab can have: the kernel's bridge, and a user-space process.

Both are context managers, called fabrics. The caller enters a fabric after the network namespaces
are created and leaves the fabric before they are deleted. Inside, `apply` sets exactly the given
faults: link faults by (from, to), NIC faults by (host, NIC).
"""

import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from slackline.errors import InternalError, UsageError
from slackline.faults import NOTHING, Effects, Fault, LinkFault, NetworkState, NicFault
from slackline.lab import _names as names
from slackline.lab._commands import Batch, kernel_up, plug, rate_changes, user_up
from slackline.lab._options import LabOptions
from slackline.lab._system import NAMESPACES, execute

__all__ = ["Fabric", "KernelFabric", "PathCount", "UserFabric", "beyond_kernel", "choose"]

Pairs = Mapping[tuple[int, int], Effects]
Nics = Mapping[tuple[int, int], Effects]


@dataclass(frozen=True, kw_only=True)
class PathCount:
    """The user-space switch's counters of frames from one host to another over one NIC."""

    source: int
    target: int
    nic: int
    frames: int
    """Frames that reached the switch; a GSO super-frame of many packets counts once."""
    bytes: int
    """Bytes of the frames in `frames`, as they would be on a wire."""
    lost: int
    duplicated: int
    reordered: int
    corrupted: int
    unplugged: int
    """Frames dropped because the path or one of its NICs was down."""
    overflowed: int
    """Frames dropped because the queue of a rate limit was full."""


class Fabric(Protocol):
    """A switch that joins the hosts of a lab."""

    def __init__(self, lab: str, options: LabOptions) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def apply(self, pairs: Pairs, nics: Nics) -> None:
        """Set these faults and remove all others."""
        ...

    def counters(self) -> tuple[PathCount, ...]:
        """Return the counters of each path that carried frames."""
        ...


def beyond_kernel(faults: Iterable[Fault]) -> Fault | None:
    """Return the first fault that the kernel's bridge cannot do, or None.

    The bridge can limit the rate of a NIC and take a NIC down.
    """
    for fault in faults:
        if isinstance(fault, LinkFault):
            return fault
        if isinstance(fault, NicFault):
            rest = replace(fault.effects, rate_bps=None, down=False, seed=0)
            if rest != NOTHING:
                return fault
    return None


def choose(switch: str, faults: Iterable[Fault]) -> str:
    """Return the switch to use, "kernel" or "user"; "auto" prefers the kernel's switch.

    Raises UsageError if `switch` is "kernel" and a fault needs the user-space switch.
    """
    beyond = beyond_kernel(faults)
    if switch == "kernel" and beyond is not None:
        raise UsageError(
            f"the kernel switch cannot apply {str(beyond)!r}: it can only take NICs down and "
            "set their rates; choose the user-space switch (switch 'user')"
        )
    if switch == "auto":
        return "kernel" if beyond is None else "user"
    return switch


class _Rates:
    """The present rate limits of all NICs, and the commands that change them."""

    def __init__(self, lab: str, options: LabOptions) -> None:
        self._lab = lab
        self._options = options
        self._now: dict[tuple[int, int], int | None] = {}

    def __call__(self, nics: Nics, *, ports: bool) -> list[Batch]:
        """Return the commands that set the rates of NICs as the faults require.

        With `ports`, the bridge's side of each cable is limited too.
        """
        base = self._options.rate
        wanted = {key: _least(base, effects.rate_bps) for key, effects in nics.items()}
        batches: list[Batch] = []
        for host, nic in sorted(wanted.keys() | self._now.keys()):
            before = self._now.get((host, nic), base)
            after = wanted.get((host, nic), base)
            home, name = names.namespace(self._lab, host), names.interface(nic)
            batches += rate_changes(home, [name], before, after, self._options.burst)
            if ports:
                port = names.port(host, nic)
                fabric = names.fabric(self._lab)
                batches += rate_changes(fabric, [port], before, after, self._options.burst)
        self._now = wanted
        return batches


class KernelFabric:
    """The kernel's switch: one bridge for each NIC number, all in a namespace of their own."""

    def __init__(self, lab: str, options: LabOptions) -> None:
        self._lab = lab
        self._options = options
        self._rates = _Rates(lab, options)
        self._down: set[tuple[int, int]] = set()

    def __enter__(self) -> Self:
        execute(kernel_up(self._lab, self._options))
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: deleting the namespace deletes the bridges."""

    def apply(self, pairs: Pairs, nics: Nics) -> None:
        """Set these faults and remove all others.

        `choose` has already refused the faults that the kernel's bridge cannot do.
        """
        down = {key for key, effects in nics.items() if effects.down}
        home = names.fabric(self._lab)
        batches = []
        for plugged, ports in ((False, down - self._down), (True, self._down - down)):
            if ports:
                batches.append(plug(home, [names.port(*port) for port in sorted(ports)], plugged))
        self._down = down
        execute([*batches, *self._rates(nics, ports=True)])

    def counters(self) -> tuple[PathCount, ...]:
        """Raise UsageError: the kernel's bridge does not count frames by path."""
        raise UsageError("the kernel switch does not count frames by path: use the user-space one")


class UserFabric:
    """The user-space switch: a process that forwards frames between the NICs of all hosts."""

    def __init__(self, lab: str, options: LabOptions) -> None:
        self._lab = lab
        self._options = options
        self._rates = _Rates(lab, options)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        paths = [
            str(NAMESPACES / names.namespace(self._lab, host))
            for host in range(self._options.hosts)
        ]
        rate = 0 if self._options.rate is None else self._options.rate // 8
        wanted = json.dumps({"nics": self._options.nics, "rate": rate, "namespaces": paths})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "slackline.lab._switch", wanted],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            said = self._hear()
            if "error" in said:
                raise UsageError(f"the user-space switch cannot run here: {said['error']}")
            execute(user_up(self._lab, self._options))
        except BaseException:
            self._process.kill()
            self._process.communicate()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.communicate()  # The switch ends when its standard input is closed.

    def apply(self, pairs: Pairs, nics: Nics) -> None:
        """Set these faults and remove all others."""
        execute(self._rates(nics, ports=False))
        self._ask({"paths": _paths(pairs, nics, self._options), "ports": _ports(nics)})

    def counters(self) -> tuple[PathCount, ...]:
        """Return the counters of each path that carried frames."""
        return tuple(PathCount(**row) for row in self._ask({"counters": True})["paths"])

    def _ask(self, what: dict[str, Any]) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        with self._lock:
            try:
                print(json.dumps(what), file=self._process.stdin, flush=True)
            except BrokenPipeError:
                raise self._dead() from None
            return self._hear()

    def _hear(self) -> dict[str, Any]:
        """Return the next JSON line of the switch process."""
        assert self._process is not None
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise self._dead()
        said: dict[str, Any] = json.loads(line)
        return said

    def _dead(self) -> InternalError:
        """Return the error for a switch process that has ended."""
        assert self._process is not None
        return InternalError(f"the lab's switch has ended, with code {self._process.wait()}")


def _paths(pairs: Pairs, nics: Nics, options: LabOptions) -> list[tuple[object, ...]]:
    """Return the faults of each path (from, to, NIC), as rows for the user-space switch.

    A NIC fault that acts on single packets, such as loss, applies to every path of that NIC.
    """
    # `_ports` handles rates and NICs that are down.
    packets = {key: replace(effects, rate_bps=None, down=False) for key, effects in nics.items()}
    network = NetworkState(
        pairs=pairs,
        nics={key: each for key, each in packets.items() if each != Effects(seed=each.seed)},
    )
    found = network.paths(options.hosts, options.nics)
    return [
        (
            *key,
            effects.delay_ns,
            effects.jitter_ns,
            effects.bytes_per_second,
            effects.loss,
            effects.duplicate,
            effects.reorder,
            effects.corrupt,
            effects.down,
            effects.seed,
        )
        for key, effects in sorted(found.items())
    ]


def _ports(nics: Nics) -> list[tuple[object, ...]]:
    """Return a row for the user-space switch for each NIC with a fault: host, NIC, rate, down."""
    return [
        (host, nic, effects.bytes_per_second, effects.down)
        for (host, nic), effects in sorted(nics.items())
    ]


def _least(*rates: int | None) -> int | None:
    return min((rate for rate in rates if rate is not None), default=None)
