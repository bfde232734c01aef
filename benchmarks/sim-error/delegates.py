"""A rank whose messages delegates carry by hand: threads that copy, sleep and send.

    rank i        | F |copy|  F  |copy|        the rank's copier: one copy at a time, at a rate
    a delegate            | sleep | isend |    one message at a time
    rank i + 1                          |copy| F |

A stage's computations are waits; its messages are real, and each carries its microbatch and the
number of the stages that it has passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from _harness.groups import join
from _harness.ranks import LabRanks, Place
from _harness.timers import go_before_others, sharpen_timers, sleep_until
from cases import Effort
from delegated_cases import COPY_BYTES_PER_SECOND, Delegated, by_hosts
from torch import Tensor

from slackline.lab import Lab
from slackline.plan.pipeline import Instruction, Kind, duration_ps

TIMEOUT = timedelta(seconds=60)
LEAD_MS = 60
"""The time from the request to the start of an iteration, within which all ranks get ready."""
ENVIRONMENT = {
    "SLACKLINE_RAILS": "tcp",
    "SLACKLINE_INTERFACE": "eth0",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class _Receive:
    """A message that comes: its place in the host's memory, and the request."""

    buffer: Tensor
    request: dist.Work


class _Way:
    """The delegates of a rank's messages to one neighbour; messages go to them in turns."""

    def __init__(self, to: int, delegates: int, sleep_ns: int) -> None:
        self._to, self._sleep_ns = to, sleep_ns
        self._delegates = [ThreadPoolExecutor(1) for _ in range(delegates)]
        self._sent = 0

    def send(self, buffer: Tensor, tag: int) -> Future[None]:
        """Let the next delegate carry a message from the host's memory."""
        delegate = self._delegates[self._sent % len(self._delegates)]
        self._sent += 1
        return delegate.submit(self._carry, buffer, tag)

    def close(self) -> None:
        """End the delegates' threads."""
        for each in self._delegates:
            each.shutdown()

    def _carry(self, buffer: Tensor, tag: int) -> None:
        sleep_until(time.monotonic_ns() + self._sleep_ns)
        request = dist.isend(buffer, self._to, tag=tag)
        assert request is not None
        request.wait()


class Member:
    """A rank with one stage, a copier and its delegates."""

    def __init__(self, place: Place) -> None:
        sharpen_timers()
        self._before_others = go_before_others()
        self._rank = place.rank
        self._copier = ThreadPoolExecutor(1)
        self._ways: dict[int, _Way] = {}
        join(place, TIMEOUT)

    def before_others(self) -> bool:
        """Return whether this rank has priority over other programs on the machine."""
        return self._before_others

    def prepare(self, case: Delegated) -> None:
        """Make the delegates and the order of a case, and run one iteration."""
        self._leave()
        self._case, self._scenario = case, case.scenario()
        self._program = case.plan().programs[self._rank]
        self._count = case.shape.message_bytes // 4
        last = case.shape.stages - 1
        for to, link in ((self._rank - 1, self._rank - 1), (self._rank + 1, self._rank)):
            if 0 <= to <= last:
                self._ways[to] = _Way(to, case.delegates, case.sleep_ns(link))
        self.iterate(0)

    def iterate(self, start_ns: int) -> int:
        """Run one iteration that begins at `start_ns` on every rank; return its end in ns.

        Raises ArithmeticError where a message has another microbatch or passed other stages.
        """
        receives = self._receives()
        sent: list[Future[Future[None]]] = []
        sleep_until(start_ns)
        for instruction in self._program:
            passed = 0
            if (source := self._source(instruction)) is not None:
                passed = self._fetch(receives[source, instruction.microbatch], instruction)
            wait_ns = duration_ps(instruction, self._scenario) // 1000
            sleep_until(time.monotonic_ns() + wait_ns)
            if (to := self._target(instruction)) is not None:
                device = torch.empty(self._count)
                device.fill_(100 * instruction.microbatch + passed + 1)
                sent.append(self._copier.submit(self._hand_over, device, to, instruction))
        ended_ns = time.monotonic_ns()
        for each in sent:
            each.result().result()
        return ended_ns

    def close(self) -> None:
        """Leave the process group."""
        self._leave()
        self._copier.shutdown()
        dist.destroy_process_group()

    def _receives(self) -> dict[tuple[int, int], _Receive]:
        """Request all messages of an iteration, by sender and microbatch."""
        found = {}
        for source in self._ways:
            for microbatch in range(self._case.shape.microbatches):
                buffer = torch.empty(self._count)
                request = dist.irecv(buffer, source, tag=microbatch)
                assert request is not None
                found[source, microbatch] = _Receive(buffer, request)
        return found

    def _fetch(self, receive: _Receive, instruction: Instruction) -> int:
        """Wait for a message, copy it to the device; return the stages that it has passed."""
        receive.request.wait()
        device = torch.empty_like(receive.buffer)
        self._copier.submit(_copy, receive.buffer, device).result()
        microbatch, passed = divmod(int(device[-1]), 100)
        first = self._case.shape.stages - 1 - self._rank
        if instruction.kind is Kind.F:
            first = self._rank
        if (microbatch, passed) != (instruction.microbatch, first) or device[0] != device[-1]:
            raise ArithmeticError(
                f"{instruction} got microbatch {microbatch} after {passed} stages, not {first}"
            )
        return passed

    def _hand_over(self, device: Tensor, to: int, instruction: Instruction) -> Future[None]:
        """Copy a message to the host's memory, and give it to a delegate."""
        buffer = torch.empty_like(device)
        _copy(device, buffer)
        return self._ways[to].send(buffer, instruction.microbatch)

    def _source(self, instruction: Instruction) -> int | None:
        """Return the rank whose message an instruction needs."""
        if instruction.kind is Kind.W:
            return None
        source = self._rank + (-1 if instruction.kind is Kind.F else 1)
        return source if source in self._ways else None

    def _target(self, instruction: Instruction) -> int | None:
        """Return the rank that gets an instruction's result."""
        if instruction.kind is Kind.W:
            return None
        target = self._rank + (1 if instruction.kind is Kind.F else -1)
        return target if target in self._ways else None

    def _leave(self) -> None:
        for way in self._ways.values():
            way.close()
        self._ways = {}


def _copy(source: Tensor, target: Tensor) -> None:
    """Copy at the rate of a device's copies."""
    until_ns = time.monotonic_ns() + source.nbytes * 1_000_000_000 // COPY_BYTES_PER_SECOND
    target.copy_(source)
    sleep_until(until_ns)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The seconds of each iteration, from the common start to the last rank's end, by life."""

    lives_s: dict[Delegated, list[list[float]]]
    before_others: bool
    """Whether all ranks had priority over other programs on the machine."""


def measured(lab: Lab, cases: list[Delegated], effort: Effort) -> Measured:
    """Measure the cases; each life has new processes for each placement of the ranks."""
    lives_s: dict[Delegated, list[list[float]]] = {}
    before_others = True
    for hosts, group in by_hosts(cases):
        for _ in range(effort.lives):
            with LabRanks(Member, lab, environment=ENVIRONMENT, hosts=hosts) as ranks:
                before_others &= all(ranks.ask("before_others"))
                for case in group:
                    ranks.ask("prepare", case)
                    lives_s.setdefault(case, []).append(_iterations(ranks.ask, effort.iterations))
                ranks.ask("close")
    return Measured(lives_s=lives_s, before_others=before_others)


def _iterations(ask: Callable[..., list[int]], count: int) -> list[float]:
    found = []
    for _ in range(count):
        start_ns = time.monotonic_ns() + LEAD_MS * 1_000_000
        found.append((max(ask("iterate", start_ns)) - start_ns) / 1e9)
    return found
