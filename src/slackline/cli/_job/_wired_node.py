"""The aggregation node of a job in a lab: an aggregator, a wire, and a simulated node at its end.

    rank 0 ... rank n-1  <── lab ──>  aggregator (host n)  <── wire0 ──>  node (host n + 1)

The aggregator is a `slackline aggregate` process and the node a `slackline circuit node` process;
they exchange Ethernet packets over a pair of virtual interfaces of their own. Both are started
before the ranks and ended after them, and the kernel ends them if the command dies. A second
aggregator on host n adds in software, for the run that is compared.
"""

import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from slackline.circuit import NodeOptions
from slackline.errors import UsageError
from slackline.lab import Lab
from slackline.units import count

__all__ = ["MORE_HOSTS", "WiredNode", "check_node", "wired_node"]

MORE_HOSTS = 2
"""The hosts that a lab needs beside those of the ranks: the aggregator's and the node's."""

_WIRE = "wire0"
_PORT, _SOFTWARE_PORT = 7000, 7001
_PATIENCE_S = 60
"""The time that the aggregator and the node have to end."""
_LOOK_S = 0.1

_OVER = re.compile(
    r": over after .*, (\d+) frames? by its Ethernet node .*, (\d+) frames? sent again.*"
    r", its sums have hash (\w+), those of software (\w+)"
)
_SERVED = re.compile(r"(\d+) packets? in, (\d+) out, .*, (\d+) cycles?;")


def check_node(node: str, ranks: int, *, lab: bool, aggregator: str | None) -> None:
    """Raise UsageError unless a job of `ranks` ranks can have the node that --node names."""
    if node != "ethernet":
        raise UsageError(f"--node must be ethernet, not {node!r}")
    if not lab:
        raise UsageError("--node ethernet is a host of a lab: add --lab")
    if aggregator is not None:
        raise UsageError(
            f"--node ethernet starts an aggregator: unset SLACKLINE_AGGREGATOR ({aggregator})"
        )
    from slackline.circuit import missing_tools

    if missing := missing_tools():
        raise UsageError(f"--node ethernet simulates a circuit: {missing}")
    _sizes(ranks)  # It refuses more ranks than a node has ports.


def _sizes(ranks: int) -> NodeOptions:
    """Return the sizes of a node for this many ranks; its frames fit the lab's MTU."""
    return NodeOptions(ports=ranks, lanes=4, slots=16, payload_bytes=1024)


@dataclass
class Counts:
    """Counts of the frames, packets and cycles of a node."""

    frames: int = 0
    """The workers' frames that the node has added, as the aggregator counts them."""
    resent: int = 0
    """The packets of frames that the aggregator has sent to the node again."""
    packets: int = 0
    """The packets that the node has received and sent, those for its registers included."""
    cycles: int = 0
    """The cycles that the circuit was simulated for."""

    hashes: tuple[str, str] = ("", "")
    """The hashes of the node's sums and of software's sums of the same frames; of several groups,
    joined by commas."""

    @property
    def right(self) -> bool:
        """Whether the node's sums have the bits of software."""
        return self.hashes[0] == self.hashes[1]

    def __str__(self) -> str:
        return (
            f"{count(self.frames, 'frame')} by the Ethernet node "
            f"in {count(self.packets, 'packet')}, {self.resent} sent again, "
            f"{count(self.cycles, 'simulated cycle')}"
            + f"; hash of its sums {self.hashes[0]}, of software's {self.hashes[1]}"
            * bool(self.frames)
        )


class WiredNode:
    """The running aggregators and the running node."""

    def __init__(
        self, lab: Lab, ranks: int, key: str | None, received: Sequence[int], *, compare: bool
    ) -> None:
        self._received = received
        self._running: list[tuple[subprocess.Popen[str], IO[str]]] = []
        sizes, host = _sizes(ranks), lab.options.hosts - MORE_HOSTS
        lab.cable(host, host + 1, _WIRE)
        address = f"{lab.address(host)}:{_PORT}"
        software = f"{lab.address(host)}:{_SOFTWARE_PORT}"
        self.settings = {
            "SLACKLINE_AGGREGATOR": address,
            "SLACKLINE_PLAN": "star",
            "SLACKLINE_STATE_HASH": "end",
        }
        """Variables for the environment of the ranks."""
        self.software = {"SLACKLINE_AGGREGATOR": software}
        """Variables in place of those, for the run that is compared."""
        node = f"circuit node --interface {_WIRE} --ports {sizes.ports} --lanes {sizes.lanes}"
        node += f" --slots {sizes.slots} --payload {sizes.payload_bytes}B"
        aggregate = f"aggregate --workers {ranks} --listen"
        wired = f"{aggregate} {address} --node ethernet --interface {_WIRE} --node-hash"
        keyed = ["--without-key"] if key is None else ["--key", key]
        try:
            if compare:
                words = f"{aggregate} {software}".split()
                self._start(lab.command(host, _command([*words, *keyed])))
            self._start(lab.command(host + 1, _command(node.split())))
            self._start(lab.command(host, _command([*wired.split(), *keyed])))
        except BaseException:
            self.close()
            raise

    def end(self) -> Counts:
        """End the node's aggregator, then the node; return what has passed the node.

        The aggregator in software runs until `close`.
        """
        found = Counts()
        for _ in range(2):
            process, errors = self._running[-1]
            process.send_signal(signal.SIGTERM)
            printed, _ = process.communicate(timeout=_PATIENCE_S)
            errors.seek(0)
            groups = _OVER.findall(errors.read())
            if groups:
                found.hashes = (",".join(g[2] for g in groups), ",".join(g[3] for g in groups))
            for frames, resent, _, _ in groups:
                found.frames += int(frames)
                found.resent += int(resent)
            for received, sent, cycles in _SERVED.findall(printed):
                found.packets += int(received) + int(sent)
                found.cycles += int(cycles)
            self._running.pop()
            errors.close()
        return found

    def close(self) -> None:
        """Kill what still runs."""
        for process, errors in self._running:
            process.kill()
            process.communicate()
            errors.close()
        self._running.clear()

    def _start(self, command: list[str]) -> None:
        """Start a process and wait for its first line, which says that it serves."""
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `end` and `close` close it
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # Ctrl-C is for the ranks, which still need the node.
        )
        self._running.append((process, errors))
        assert process.stdout is not None
        while not select.select([process.stdout], [], [], _LOOK_S)[0]:
            if self._received:
                raise SystemExit(128 + self._received[0])
        if not process.stdout.readline():
            process.wait(_PATIENCE_S)
            errors.seek(0)
            said = errors.read().strip().removeprefix("slackline: ")
            raise UsageError(f"the Ethernet node cannot run here: {said}")


def _command(words: list[str]) -> list[str]:
    """Return the command line of a `slackline` command that ends with this process."""
    program = (
        "import sys; from slackline.cli._job._agent import die_with; from slackline.cli import main"
        "; die_with(int(sys.argv[1])); sys.exit(main(sys.argv[2:]))"
    )
    return [sys.executable, "-c", program, str(os.getpid()), *words]


@contextmanager
def wired_node(
    lab: Lab, ranks: int, key: str | None, received: Sequence[int], *, compare: bool
) -> Iterator[WiredNode]:
    """Run an aggregator and a node for the ranks; kill them at the end unless they have ended.

    With `compare`, an aggregator in software runs beside them for a second run. `key` is the path
    of the ranks' key file. A signal that comes while the node is compiled, which `received` then
    holds, ends the command.
    """
    node = WiredNode(lab, ranks, key, received, compare=compare)
    try:
        yield node
    finally:
        node.close()
