"""The contestants' ranks: processes that live as long as a network and sleep between turns."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from _harness import openmpi
from _harness.machine import sent_packets
from _harness.programs import Greeting, Programs, compile_program
from _harness.ranks import Conductor, LabRanks, Ranks
from _harness.usage import Usage
from cases import Contestant, Network
from rank import start_rank

from slackline.lab import Lab, LabOptions

RING_SOURCE = Path(__file__).with_name("ring_allreduce.cc")
RING_COMPILER = "c++"


class Crew(Protocol):
    """The ranks of one contestant, seen from the benchmark."""

    def prepare(self, count: int) -> None:
        """Allocate for up to `count` elements; 0 frees the previous buffers."""
        ...

    def turn(self, count: int, calls: int, salt: int) -> list[Usage]:
        """Run `calls` operations, check the results, and return one operation's usage by rank."""
        ...

    def packets(self) -> int:
        """Return the packets that the interfaces of all ranks have sent so far."""
        ...


@dataclass(frozen=True)
class Wires:
    """The interfaces that a network's ranks send through."""

    one_host: bool

    def packets(self, pids: Sequence[int]) -> int:
        """Return the packets that these processes' interfaces have sent so far.

        On one host all processes share the loopback interface.
        """
        if self.one_host:
            return sent_packets(pids[0], "lo")
        return sum(sent_packets(pid, "eth0") for pid in pids)


@dataclass(frozen=True)
class TorchCrew:
    """The ranks of a contestant that uses torch.distributed."""

    ranks: Conductor
    wires: Wires

    def prepare(self, count: int) -> None:
        self.ranks.ask("prepare", count)

    def turn(self, count: int, calls: int, salt: int) -> list[Usage]:
        return self.ranks.ask("turn", count, calls, salt)

    def packets(self) -> int:
        return self.wires.packets(self.ranks.pids)


@dataclass(frozen=True)
class ProgramCrew:
    """The ranks of a program, which allocates its buffers in each turn."""

    programs: Programs
    pids: list[int]
    wires: Wires

    def prepare(self, count: int) -> None:
        pass

    def turn(self, count: int, calls: int, salt: int) -> list[Usage]:
        return self.programs.turn(count, calls, 0, salt)

    def packets(self) -> int:
        return self.wires.packets(self.pids)


def missing(contestant: Contestant) -> str | None:
    """Return the reason why a contestant cannot take part on this machine; None if it can."""
    if contestant is Contestant.OPENMPI:
        return openmpi.missing()
    if contestant is Contestant.RING and shutil.which(RING_COMPILER) is None:
        return f"{RING_COMPILER} is not installed"
    return None


@contextmanager
def crews_on(network: Network, who: Sequence[Contestant]) -> Iterator[Mapping[Contestant, Crew]]:
    """Start the ranks of all contestants on a network; yield them by contestant.

    Raises UsageError if this machine cannot provide the network.
    """
    with ExitStack() as stack:
        lab = None
        if network.rate_bps is not None:
            options = LabOptions(hosts=network.ranks, rate=network.rate_bps)
            lab = stack.enter_context(Lab(options))
        wires = Wires(lab is None)
        # All ranks are started before any is waited for, so that they start side by side.
        torch_ranks = {
            contestant: stack.enter_context(_torch_ranks(contestant, network, lab))
            for contestant in who
            if contestant.rails is not None or contestant is Contestant.GLOO
        }
        programs = {
            contestant: stack.enter_context(_PROGRAMS[contestant](network, lab))
            for contestant in who
            if contestant in _PROGRAMS
        }
        crews: dict[Contestant, Crew] = {
            contestant: TorchCrew(ranks, wires) for contestant, ranks in torch_ranks.items()
        }
        for contestant, ranks in programs.items():
            greetings = ranks.greet()
            if contestant is Contestant.RING:
                _connect(ranks, [_address(lab, rank) for rank in range(network.ranks)], greetings)
            crews[contestant] = ProgramCrew(ranks, [each.pid for each in greetings], wires)
        yield {contestant: crews[contestant] for contestant in who}
        for ranks in torch_ranks.values():
            ranks.ask("close")


def _torch_ranks(contestant: Contestant, network: Network, lab: Lab | None) -> Ranks | LabRanks:
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo" if lab is None else "eth0"}
    environment |= contestant.environment
    start = partial(start_rank, "gloo" if contestant.rails is None else "slackline")
    if lab is None:
        return Ranks(start, network.ranks, environment=environment)
    return LabRanks(start, lab, environment=environment)


@contextmanager
def _openmpi(network: Network, lab: Lab | None) -> Iterator[Programs]:
    if lab is None:
        ranks = openmpi.on_this_host(network.ranks, "tcp", polite=True)
    else:
        ranks = openmpi.on_hosts(lab)
    with ranks as programs:
        yield programs


@contextmanager
def _ring(network: Network, lab: Lab | None) -> Iterator[Programs]:
    with Programs("ring_allreduce", network.ranks) as programs:
        program = programs.folder / "ring_allreduce"
        command = [RING_COMPILER, "-std=c++20", "-O3", "-march=native", "-pthread"]
        compile_program(command, RING_SOURCE, program)
        for rank in range(network.ranks):
            address = _address(lab, rank)
            words = [str(program), str(programs.folder), str(rank), str(network.ranks), address]
            programs.start(words if lab is None else lab.command(rank, words))
        yield programs


def _connect(ring: Programs, addresses: Sequence[str], greetings: Sequence[Greeting]) -> None:
    """Tell every rank the address and port of the next rank."""
    wheres = [
        f"connect {address} {greeting.port}"
        for address, greeting in zip(addresses, greetings, strict=True)
    ]
    ring.say([*wheres[1:], wheres[0]])


def _address(lab: Lab | None, rank: int) -> str:
    return "127.0.0.1" if lab is None else lab.address(rank)


_PROGRAMS: Mapping[Contestant, Callable[[Network, Lab | None], AbstractContextManager[Programs]]]
_PROGRAMS = {Contestant.OPENMPI: _openmpi, Contestant.RING: _ring}
