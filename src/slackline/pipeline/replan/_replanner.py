"""The replacement of a plan: one rank decides and searches, all ranks adopt it at the same step.

rank 0      decides ─ searches in another process, for any number of steps ─┐
│ size
step s      ends: metrics and the size of a found plan go to all ranks ─────┘
step s + 2  begins: all ranks know the size; a broadcast of the plan starts
step s + 3  begins: all ranks have the plan and follow it
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from slackline.nic import Group, Operation, Transfer
from slackline.pipeline._policy import Policy
from slackline.pipeline._record import StepRecord
from slackline.pipeline.replan._decision import (
    Expected,
    ReplanState,
    StepMetrics,
    Thresholds,
    decide,
    warm_up,
)
from slackline.pipeline.replan._metrics import MetricsExchange
from slackline.pipeline.replan._search import PlanSearch
from slackline.plan.pipeline import PipelinePlan, PlanUpdate, Scenario, one_each
from slackline.wire import DType

__all__ = ["Forecaster", "Replanner", "can_replan"]

_log = logging.getLogger("slackline.pipeline")

_PLANNER = 0
"""The rank of the pipeline's group that decides and searches."""


class Forecaster(Protocol):
    """The forecasts of all links, such as a `Foresight`; times are of one clock, in nanoseconds."""

    def step_ended(self, step: int, begin_ns: int, end_ns: int) -> None:
        """Record the times of a step, whose delays `expected` gets later."""

    def requested(self, step: int) -> None:
        """Record that the search for a plan was started at the beginning of a step."""

    def adopted(self, step: int) -> None:
        """Record that the requested plan was adopted at the beginning of a step."""

    def expected(self, measured: StepMetrics, now_ns: int) -> Mapping[int, Expected]:
        """Add the delays of a step, and return the expected delays of the foretold links."""


class Replanner:
    """The part of one rank in the replacement of pipeline plans.

    All ranks adopt a new plan at the same step, since they receive the same message about it.
    """

    def __init__(
        self,
        policy: Policy,
        plan: PipelinePlan,
        scenario: Scenario,
        nic: Group,
        metrics: MetricsExchange,
        *,
        tag: int,
        effort: float,
        forecaster: Forecaster | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Create a replanner that starts with `plan`, made for `scenario`.

        `metrics` exchanges the measurements, and plans are broadcast under `tag`. `effort` scales
        the search time of a new plan. With a `forecaster`, which the rank that decides uses, plans
        are made before the delays that they are for. `clock` is that rank's clock in nanoseconds.
        """
        self.plan, self.scenario = plan, scenario
        self.waits_ps: tuple[tuple[int, ...], ...] = ()
        """The planned idle time before each instruction of each rank; empty before a new plan."""
        self._policy = policy
        self._nic, self._tag = nic, tag
        self._metrics = metrics
        self._effort = effort
        self._found = b""
        self._announced = False
        self._broadcast: tuple[Transfer, Tensor] | None = None
        # The queue keeps the buffer of a pending broadcast, also when the schedule is dropped.
        self._pending = nic.completion_queue()
        self._search = PlanSearch() if nic.rank == _PLANNER else None
        self._forecaster = forecaster
        self._clock = clock
        self._steps = 0
        self._thresholds = Thresholds()
        self._state = ReplanState(
            planned=scenario,
            warm_up=warm_up(plan),
            follows_times=policy.replans == "auto",
            slack=plan.placement == one_each(plan.stages),
        )

    def publish(self, record: StepRecord) -> None:
        """Send a finished step's measurements to all ranks; do not block.

        Rank 0 adds the size of a plan that its search has found. The first step is left out, since
        it also allocates, compiles and connects.
        """
        if record.step == 0:
            return
        if self._search is not None and self._forecaster is not None:
            now_ns = self._clock()
            self._forecaster.step_ended(record.step, now_ns - record.wall_ns, now_ns)
        self._collect()
        size = 0 if self._announced else len(self._found)
        self._announced = self._announced or size > 0
        self._metrics.publish(record, size)

    def next(self) -> str:
        """Choose the plan of the next step; return the reason for a new plan, or an empty text.

        Blocks until the measurements of the step before the latest have come from all ranks, and
        until a plan that is due has arrived.
        """
        self._steps += 1
        reason = self._adopt()
        polled = self._metrics.poll()
        if polled is None:
            return reason
        measured, size = polled
        if size:
            self._receive(size)
        if self._search is not None:
            expected: Mapping[int, Expected] = {}
            if self._forecaster is not None:
                expected = self._forecaster.expected(measured, self._clock())
            self._state, scenario, wanted = decide(
                measured, self._state, self._thresholds, expected
            )
            if scenario is not None and not self._search.running and not self._found:
                if self._forecaster is not None:
                    self._forecaster.requested(self._steps)
                self._search.start(
                    self._policy.replans,
                    scenario,
                    self.plan.placement,
                    effort=self._effort,
                    reason=wanted,
                )
        return reason

    def _collect(self) -> None:
        """Take the answer of a finished search, on the rank that searches."""
        answer = None if self._search is None else self._search.answer()
        if answer is None:
            return
        self._found, error = answer
        if error:
            _log.warning("the plan stays, since there is no other: %s", error.splitlines()[0])
            self._state = self._state.replanned(self._state.planned, self.plan)

    def _receive(self, size: int) -> None:
        """Start the broadcast of a plan of `size` bytes."""
        data = torch.empty(size, dtype=torch.uint8, device="cpu")
        if self._nic.rank == _PLANNER:
            data = torch.frombuffer(bytearray(self._found), dtype=torch.uint8)
        operation = Operation.broadcast(data.data_ptr(), size, DType.UINT8, _PLANNER, tag=self._tag)
        transfer = self._nic.post(operation)
        self._pending.add(transfer, data)
        self._broadcast = transfer, data

    def _adopt(self) -> str:
        """Follow the plan whose broadcast began a step ago; return the reason for the plan."""
        if self._broadcast is None:
            return ""
        transfer, data = self._broadcast
        self._broadcast = None
        transfer.wait()
        self._pending.poll()
        update = PlanUpdate.decode(data.numpy().tobytes())
        changed = update.plan != self.plan
        self.plan, self.scenario, self.waits_ps = update.plan, update.scenario, update.waits_ps
        self._found, self._announced = b"", False
        if self._search is not None:
            if self._forecaster is not None:
                self._forecaster.adopted(self._steps)
            self._state = self._state.replanned(update.scenario, update.plan)
            _log.info("new plan: %s", update.reason.splitlines()[0])
        return update.reason if changed else ""


def can_replan(policy: Policy, placement: Sequence[int]) -> bool:
    """Return whether a policy can make new plans for a placement of stages.

    Adaptra's plans exist only for one stage on each rank, in order.
    """
    if policy.replans == "adaptra":
        return tuple(placement) == one_each(len(placement))
    return bool(policy.replans)
