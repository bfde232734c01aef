"""Steps and operations as spans of OpenTelemetry.

    trace of step 7    rank 0   [ training step                ]
                                    [ all_reduce ]   < link <
                       rank 1   [ training step                ]  |
                                    [ all_reduce ]  > link > > >

All spans of a step, of all ranks, form one trace; an operation belongs to the step in which it was
posted, and without a step to a trace of its own. The numbers of traces and spans are hashes of the
run, the step and the operation, so that every rank's spans of one operation have the same trace and
link to that of its first rank, whichever program has made them.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import blake2b
from typing import Protocol

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags
from opentelemetry.util.types import AttributeValue

from slackline.records import (
    FileHeader,
    GroupOpened,
    Operation,
    Operations,
    PipelineStep,
    Record,
    StepSummary,
)
from slackline.views.trace._operations import check, family_of, plan_of

__all__ = ["Clocks", "SpanMaker"]

_KEPT_STEPS = 1024
"""The number of latest steps of a rank to which an operation may still belong."""

_MOST_HELD = 1 << 16
"""The number of a rank's operations that are held until their step has ended."""


class Clocks(Protocol):
    """The conversion of the times of telemetry to the Unix time of spans."""

    def unix_ns(self, rank: int, monotonic_ns: int) -> int:
        """Return the Unix time at a monotonic time of the rank's host."""

    def from_unix(self, rank: int, time_ns: int) -> int:
        """Return the monotonic time of the rank's host at a Unix time of the same host."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of a rank, to which operations may belong."""

    context: SpanContext
    begin_ns: int
    end_ns: int


@dataclass(slots=True)
class _Rank:
    """The state of one rank."""

    resource: Resource
    processes: int = 1
    groups: dict[int, GroupOpened] = field(default_factory=dict)
    steps: deque[_Step] = field(default_factory=lambda: deque(maxlen=_KEPT_STEPS))
    held: deque[Operation] = field(default_factory=deque)


class SpanMaker:
    """A converter of records to spans, which are complete when they are made."""

    def __init__(
        self, run: str, clocks: Clocks, *, service: str, patience: timedelta, version: str
    ) -> None:
        """Make spans of the run that the text `run` identifies, by the time of `clocks`.

        An operation is held until the step has ended in which it was posted, but for no longer than
        `patience`; then it has no parent.
        """
        self._run, self._clocks, self._service = run, clocks, service
        self._patience_ns = patience // timedelta(microseconds=1) * 1000
        self._scope = InstrumentationScope("slackline", version)
        self._ranks: dict[int, _Rank] = {}

    def take(self, record: Record) -> Iterator[ReadableSpan]:
        """Yield the spans that have become complete with a record.

        Records of a rank come in the order of its file, from its header on. Raises ValueError for
        an operation of an unknown kind.
        """
        if isinstance(record, FileHeader):
            self._begin(record)
            return
        rank = self._ranks[record.rank]
        match record:
            case GroupOpened():
                rank.groups[record.epoch] = record
            case StepSummary():
                yield from self._training_step(rank, record)
            case PipelineStep():
                yield from self._pipeline_step(rank, record)
            case Operations():
                for operation in record.rows:
                    yield from self._operation(record.rank, rank, operation)
            case _:
                pass

    def finish(self) -> Iterator[ReadableSpan]:
        """Yield the spans of the operations that are still held, without a parent."""
        for number, rank in self._ranks.items():
            while rank.held:
                yield self._span_of(number, rank, rank.held.popleft(), None)

    def _begin(self, header: FileHeader) -> None:
        """Begin a process of a rank."""
        known = self._ranks.get(header.rank)
        resource = Resource(
            {
                "service.name": self._service,
                "service.instance.id": f"{self._run} rank {header.rank}",
                "host.name": header.host,
                "process.pid": header.process,
                "slackline.rank": header.rank,
            }
        )
        if known is None:
            self._ranks[header.rank] = _Rank(resource)
        else:
            known.resource = resource
            known.processes += 1

    def _training_step(self, rank: _Rank, record: StepSummary) -> Iterator[ReadableSpan]:
        end_ns = self._unix_ns(record.rank, record.time_ns)
        kind = f"training step, optimizer {record.optimizer}"
        attributes: dict[str, AttributeValue] = {
            "slackline.step": record.step,
            "slackline.optimizer": record.optimizer,
            "slackline.exposed_ns": record.exposed_ns,
            "slackline.forward_ns": record.forward_ns,
            "slackline.backward_ns": record.backward_ns,
            "slackline.reduced_bytes": record.reduced_bytes,
        }
        if record.hidden_ns is not None:
            attributes["slackline.hidden_ns"] = record.hidden_ns
        begin_ns = end_ns - record.wall_ns
        span = self._step_span(rank, record, "training step", kind, begin_ns, end_ns, attributes)
        yield span
        if record.optimizer == 0:
            yield from self._close_step(record.rank, rank, span)

    def _pipeline_step(self, rank: _Rank, record: PipelineStep) -> Iterator[ReadableSpan]:
        begin_ns = self._unix_ns(record.rank, record.time_ns)
        attributes: dict[str, AttributeValue] = {
            "slackline.step": record.step,
            "slackline.plan": record.plan,
            "slackline.policy": record.policy,
            "slackline.computing_ns": record.computing_ns,
            "slackline.waiting_ns": record.waiting_ns,
        }
        end_ns = begin_ns + record.wall_ns
        kind = "pipeline step"
        span = self._step_span(rank, record, kind, kind, begin_ns, end_ns, attributes)
        yield span
        yield from self._close_step(record.rank, rank, span)

    def _step_span(
        self,
        rank: _Rank,
        record: StepSummary | PipelineStep,
        name: str,
        kind: str,
        begin_ns: int,
        end_ns: int,
        attributes: dict[str, AttributeValue],
    ) -> ReadableSpan:
        """Return the span of a step: one of all ranks' spans in the step's trace."""
        step = (kind, rank.processes, record.step)
        return ReadableSpan(
            name,
            context=self._context(self._hash(16, *step), self._hash(8, *step, record.rank)),
            resource=rank.resource,
            attributes=attributes,
            start_time=begin_ns,
            end_time=end_ns,
            instrumentation_scope=self._scope,
        )

    def _close_step(self, number: int, rank: _Rank, span: ReadableSpan) -> Iterator[ReadableSpan]:
        """Take a step as a parent; yield the held operations that were posted before its end."""
        assert span.context is not None
        assert span.start_time is not None
        assert span.end_time is not None
        rank.steps.append(_Step(span.context, span.start_time, span.end_time))
        held, rank.held = rank.held, deque()
        for operation in held:
            if self._clocks.unix_ns(number, operation.posted_ns) < span.end_time:
                yield self._span_of(number, rank, operation, self._step_of(number, rank, operation))
            else:
                rank.held.append(operation)

    def _operation(self, number: int, rank: _Rank, operation: Operation) -> Iterator[ReadableSpan]:
        """Yield the span of an operation whose step has ended, and those that waited too long."""
        check(operation)
        posted_ns = self._clocks.unix_ns(number, operation.posted_ns)
        if rank.steps and posted_ns < rank.steps[-1].end_ns:
            yield self._span_of(number, rank, operation, self._step_of(number, rank, operation))
        else:
            rank.held.append(operation)
        since_ns = operation.ended_ns - self._patience_ns
        while rank.held and (rank.held[0].ended_ns < since_ns or len(rank.held) > _MOST_HELD):
            yield self._span_of(number, rank, rank.held.popleft(), None)

    def _step_of(self, number: int, rank: _Rank, operation: Operation) -> _Step | None:
        """Return the latest step in which the operation was posted; None without one."""
        posted_ns = self._clocks.unix_ns(number, operation.posted_ns)
        within = (step for step in reversed(rank.steps) if step.begin_ns <= posted_ns < step.end_ns)
        return next(within, None)

    def _span_of(
        self, number: int, rank: _Rank, operation: Operation, step: _Step | None
    ) -> ReadableSpan:
        """Return the span of an operation, with a link to that of the first rank of its family."""
        group = rank.groups.get(operation.group)
        family = None if group is None else family_of(number, operation, group)
        name, ranks = family or ((operation.group, operation.sequence, "alone"), (number,))
        kind = operation.kind
        own = self._hash(8, "operation", *name, number)
        trace = self._hash(16, "operation", *name) if step is None else step.context.trace_id
        attributes: dict[str, AttributeValue] = {
            "slackline.collective": "/".join(map(str, name)),
            "slackline.bytes": operation.bytes,
            "slackline.sequence": operation.sequence,
            "slackline.waited_ns": operation.waited_ns,
        }
        if plan := plan_of(operation.collective, operation.plan):
            attributes["slackline.plan"] = plan
        if operation.rails:
            attributes["slackline.rails"] = operation.rail_names
        if operation.internal:
            attributes["slackline.internal"] = operation.internal
        first = min(ranks)
        links = (
            Link(
                self._context(trace, self._hash(8, "operation", *name, first)),
                {"slackline.rank": first},
            ),
        )
        return ReadableSpan(
            kind,
            context=self._context(trace, own),
            parent=None if step is None else step.context,
            resource=rank.resource,
            attributes=attributes,
            links=() if first == number else links,
            status=Status(StatusCode.ERROR if operation.failed else StatusCode.UNSET),
            start_time=self._clocks.unix_ns(number, operation.posted_ns),
            end_time=self._clocks.unix_ns(number, operation.ended_ns),
            instrumentation_scope=self._scope,
        )

    def _unix_ns(self, rank: int, time_ns: int) -> int:
        return self._clocks.unix_ns(rank, self._clocks.from_unix(rank, time_ns))

    def _hash(self, nbytes: int, *parts: int | str) -> int:
        """Return a number of `nbytes` bytes that depends on the run and `parts`, and is not 0."""
        text = "/".join(map(str, (self._run, *parts))).encode()
        return int.from_bytes(blake2b(text, digest_size=nbytes).digest(), "big") or 1

    def _context(self, trace: int, span: int) -> SpanContext:
        return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
