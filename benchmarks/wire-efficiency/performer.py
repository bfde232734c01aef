"""The work of one rank: streams of allreduces through slackline or gloo, and plain TCP.

All times are of CLOCK_MONOTONIC, which the hosts of a lab share.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from _harness import pattern
from _harness.groups import join
from _harness.ranks import Place
from plain_tcp import PlainTcp
from watch import Sample, Watch, sent_bytes

TIMEOUT = timedelta(seconds=60)
EXERCISE_COUNT = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Span:
    """The start and end times of a rank's work."""

    start_ns: int
    end_ns: int


class Performer(PlainTcp):
    """A rank with a slackline group and, after `open_gloo`, a gloo group beside it."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.rank)
        self._place = place
        self._groups = {"slackline": join(place, TIMEOUT)}
        self._watch: Watch | None = None

    def open_gloo(self, timeout: timedelta = TIMEOUT) -> None:
        """Join a gloo process group whose operations fail after `timeout`."""
        self._groups["gloo"] = dist.new_group(backend="gloo", timeout=timeout)

    def prepare(self, count: int, buffers: int) -> None:
        """Allocate `buffers` tensors of `count` elements; free the previous ones."""
        self._buffers: list[torch.Tensor] = []
        self._arbitrary = self._expected = torch.empty(0)
        self._contribution = pattern.contribution(self._place.rank, count)
        self._total = pattern.total(self._place.size, count)
        self._buffers = [torch.empty(count) for _ in range(buffers)]

    def stream(self, group: str, warm_up: int, passes: int, outstanding: int, salt: int) -> Span:
        """Reduce every buffer `passes` times, with at most `outstanding` operations in flight.

        If `outstanding` is 1, each call blocks. Raises ArithmeticError if a result is wrong.
        """
        for buffer in self._buffers:
            pattern.fill(buffer, self._contribution, salt)
        self._run(group, warm_up * len(self._buffers), outstanding)
        dist.barrier(group=self._groups[group])
        start_ns = time.monotonic_ns()
        self._run(group, passes * len(self._buffers), outstanding)
        end_ns = time.monotonic_ns()
        # All ranks wait here, so that no check takes processor time while another rank is still
        # timed.
        dist.barrier(group=self._groups[group])
        self._check(warm_up + passes, salt)
        return Span(start_ns=start_ns, end_ns=end_ns)

    def one_at_a_time(self, group: str, calls: int, salt: int) -> Span:
        """Reduce the first buffer `calls` times, each when the call before has ended."""
        buffer = self._buffers[0]
        done, start_ns, end_ns = 0, 0, 0
        spent_ns = 0
        while done < calls:
            # The contents of a buffer stay exact for a limited number of calls.
            some = min(calls - done, 100)
            pattern.fill(buffer, self._contribution, salt)
            dist.barrier(group=self._groups[group])
            start_ns = time.monotonic_ns()
            for _ in range(some):
                dist.all_reduce(buffer, group=self._groups[group])
            end_ns = time.monotonic_ns()
            dist.barrier(group=self._groups[group])
            pattern.check(buffer, self._total, self._place.size, some, salt)
            spent_ns += end_ns - start_ns
            done += some
        return Span(start_ns=end_ns - spent_ns, end_ns=end_ns)

    def series(
        self, group: str, passes: int, outstanding: int, salt: int, start_ns: int
    ) -> list[Span]:
        """Run a stream from `start_ns` on, as `stream` does; return the times of each allreduce."""
        for buffer in self._buffers:
            pattern.fill(buffer, self._contribution, salt)
        dist.barrier()
        _sleep_until(start_ns)
        spans = self._run(group, passes * len(self._buffers), outstanding)
        dist.barrier()
        self._check(passes, salt)
        return spans

    def series_to_error(
        self, group: str, passes: int, outstanding: int, start_ns: int
    ) -> tuple[int, str]:
        """Run a stream from `start_ns` on until an allreduce fails.

        Returns the time of the error in ns and the error's text. Raises ValueError if no allreduce
        fails.
        """
        dist.barrier()
        _sleep_until(start_ns)
        try:
            self._run(group, passes * len(self._buffers), outstanding)
        except RuntimeError as error:
            return time.monotonic_ns(), str(error)
        raise ValueError(f"none of {passes * len(self._buffers)} allreduces over {group} failed")

    def prepare_arbitrary(self, count: int) -> None:
        """Allocate values whose sum depends on the order, and compute their sum without faults."""
        generator = torch.Generator().manual_seed(self._place.rank)
        self._arbitrary = torch.randn(count, generator=generator)
        self._expected = self._arbitrary.clone()
        dist.all_reduce(self._expected)
        self._buffers = [torch.empty_like(self._arbitrary)]

    def arbitrary(self, start_ns: int) -> tuple[Span, bool]:
        """Reduce the values of `prepare_arbitrary` in a blocking call that begins at `start_ns`.

        Returns the call's times, and whether the sum is bit-identical to the sum without faults.
        """
        (buffer,) = self._buffers
        buffer.copy_(self._arbitrary)
        dist.barrier()
        _sleep_until(start_ns)
        began_ns = time.monotonic_ns()
        dist.all_reduce(buffer)
        ended_ns = time.monotonic_ns()
        dist.barrier()
        same = torch.equal(buffer.view(torch.int32), self._expected.view(torch.int32))
        return Span(start_ns=began_ns, end_ns=ended_ns), same

    def exercise(self, nics: int) -> list[int]:
        """Run a few allreduces, and return the bytes that each NIC of this host sent for them."""
        before = sent_bytes(nics)
        values = torch.zeros(EXERCISE_COUNT)
        for _ in range(5):
            dist.all_reduce(values)
        dist.barrier()
        return [after - old for after, old in zip(sent_bytes(nics), before, strict=True)]

    def watch(self, rank: int, nics: int) -> None:
        """Sample the NICs of the host of `rank` until `watched` is called."""
        if self._place.rank == rank:
            self._watch = Watch(nics)

    def watched(self) -> list[Sample]:
        """Stop sampling and return the samples; an empty list at ranks that did not sample."""
        if self._watch is None:
            return []
        samples, self._watch = self._watch.end(), None
        return samples

    def close(self) -> None:
        """Leave the process groups."""
        dist.destroy_process_group()

    def _run(self, group: str, calls: int, outstanding: int) -> list[Span]:
        """Reduce the buffers in turn, `calls` times; return the times of each allreduce."""
        where = self._groups[group]
        under_way: deque[tuple[int, dist.Work]] = deque()
        spans: list[Span] = []

        def end_first() -> None:
            start_ns, work = under_way.popleft()
            work.wait()
            spans.append(Span(start_ns=start_ns, end_ns=time.monotonic_ns()))

        for number in range(calls):
            if len(under_way) == outstanding:
                end_first()
            buffer = self._buffers[number % len(self._buffers)]
            start_ns = time.monotonic_ns()
            work = dist.all_reduce(buffer, group=where, async_op=True)
            assert work is not None
            under_way.append((start_ns, work))
        while under_way:
            end_first()
        return spans

    def _check(self, calls: int, salt: int) -> None:
        for buffer in self._buffers:
            pattern.check(buffer, self._total, self._place.size, calls, salt)


def _sleep_until(moment_ns: int) -> None:
    left_ns = moment_ns - time.monotonic_ns()
    if left_ns > 0:
        time.sleep(left_ns / 1e9)
