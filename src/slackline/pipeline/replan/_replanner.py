"""The replacement of a plan: one rank decides and searches, all ranks adopt it at the same step.

rank 0      decides ─ searches in another process, for any number of steps ─┐
│ size
step s      ends: metrics and the size of a found plan go to all ranks ─────┘
step s + 2  begins: all ranks know the size; a broadcast of the plan starts
step s + 3  begins: all ranks have the plan and follow it

Several plans may come at once; a trial then chooses the fastest of them (see _trial). So that the
search knows how long backwards in one piece take, two early steps run the plan with them.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from slackline.nic import Group, Operation, Transfer
from slackline.pipeline._policy import Policy
from slackline.pipeline._record import StepRecord
from slackline.pipeline.replan._decision import (
    REMEMBERED,
    Expected,
    ReplanState,
    StepMetrics,
    Thresholds,
    decide,
    warm_up,
)
from slackline.pipeline.replan._metrics import MetricsExchange
from slackline.pipeline.replan._search import PlanSearch
from slackline.pipeline.replan._trial import Candidate, Trial
from slackline.plan.pipeline import (
    Kind,
    PipelinePlan,
    PlanUpdate,
    Scenario,
    decode_updates,
    encode_updates,
    in_one_piece,
    one_each,
    replay,
)
from slackline.wire import DType

__all__ = ["Forecaster", "Replanner", "can_replan"]

_log = logging.getLogger("slackline.pipeline")

_PLANNER = 0
"""The rank of the pipeline's group that decides and searches."""
_IN_ONE_PIECE = range(4, 6)
"""The steps, counted from 0, that run the plan's backwards in one piece, to measure their times."""
_GAIN = 0.97
"""The ratio of predicted times, new plan to plan in use, above which the plan in use stays."""
_MOST_PATIENCE, _MOST_HASTE = 64, 4
"""The largest factors on the durations of changes for which a new plan is made.

The factors double with each search that finds no better plan. The first is for all changes but one,
a delay that exceeds its slack, which has the second.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ran:
    """The plan of a step whose measurements are under way."""

    update: PlanUpdate
    counts_for: Candidate | None
    """The candidate of a trial for which the step's time counts."""
    measures: bool = False
    """Whether the step only measured backwards in one piece."""


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
        joins: bool = False,
        forecaster: Forecaster | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Create a replanner that starts with `plan`, made for `scenario`.

        `metrics` exchanges the measurements, and plans are broadcast under `tag`. `effort` scales
        the search time of a new plan. With `joins`, plans may run backwards in one piece, which has
        the same value on all ranks. With a `forecaster`, which the rank that decides uses, plans
        are made before the delays that they are for. `clock` is that rank's clock in nanoseconds.
        """
        self._current = PlanUpdate(plan=plan, scenario=scenario, reason="", waits_ps=())
        self._trial: Trial | None = None
        self._chosen = self._current
        """The plan outside of a trial."""
        self._joins = joins and policy.replans == "auto"
        self._one_piece: PlanUpdate | None = None
        self._next_ran: _Ran | None = None
        self._ran: deque[_Ran] = deque()
        self._policy = policy
        self._nic, self._tag = nic, tag
        self._metrics = metrics
        self._effort = effort
        self._found = b""
        self._trying: frozenset[str] = frozenset()
        """The names of the plans that a search has found and that may be tried."""
        self._announced = False
        self._broadcast: tuple[Transfer, Tensor] | None = None
        # The queue keeps the buffer of a pending broadcast, also when the schedule is dropped.
        self._pending = nic.completion_queue()
        self._search = PlanSearch() if nic.rank == _PLANNER else None
        self._forecaster = forecaster
        self._clock = clock
        self._steps = 0
        self._useless = 0
        """The searches since the latest new plan that found no better one."""
        self._apart: StepMetrics | None = None
        """The latest measurements of a step with B and W apart."""
        self._whole: StepMetrics | None = None
        """The latest measurements of a step with backwards in one piece."""
        self._winners: dict[frozenset[str], str] = {}
        """The winner of each trial, by the names of its plans."""
        self._judged = self._current
        """The plan to which the state belongs."""
        self._state = ReplanState(
            planned=scenario,
            warm_up=warm_up(plan),
            follows_times=policy.replans == "auto",
            slack=plan.placement == one_each(plan.stages),
        )

    @property
    def plan(self) -> PipelinePlan:
        """The plan of the next step."""
        return self._current.plan

    @property
    def scenario(self) -> Scenario:
        """The times, delays and memory that the plan was made for."""
        return self._current.scenario

    @property
    def waits_ps(self) -> tuple[tuple[int, ...], ...]:
        """The planned idle time before each instruction of each rank; empty before a new plan."""
        return self._current.waits_ps

    def publish(self, record: StepRecord) -> None:
        """Send a finished step's measurements to all ranks; do not block.

        Rank 0 adds the size of the plans that its search has found. The first step is left out,
        since it also allocates, compiles and connects.
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
        assert self._next_ran is not None
        self._ran.append(self._next_ran)

    def next(self) -> str:
        """Choose the plan of the next step; return the reason for a new plan, or an empty text.

        The begin and the end of a trial have a reason even if the plan stays. Blocks until the
        measurements of the step before the latest have come from all ranks, and until plans that
        are due have arrived.
        """
        before, trial = self._current.plan, self._trial
        reason = self._adopt()
        polled = self._metrics.poll()
        if polled is not None:
            measured, size = polled
            ran = self._ran.popleft()
            if ran.counts_for is not None:
                ran.counts_for.step_ns.append(measured.wall)
            if size:
                self._receive(size)
            if self._search is not None:
                self._decide(measured, ran)
        reason = "; ".join(each for each in (reason, self._follow()) if each)
        self._steps += 1
        changed = self._trial is not trial or self._current.plan != before
        return reason if changed else ""

    def _follow(self) -> str:
        """Choose the plan of the next step; return the reason if a trial begins a turn or ends."""
        self._current = self._chosen
        if self._joins and self._steps in _IN_ONE_PIECE:
            if self._one_piece is None:
                # The same plan for all these steps: its first step also checks the graphs.
                plan = in_one_piece(self._chosen.plan)
                self._one_piece = replace(self._chosen, plan=plan, waits_ps=())
            self._current = self._one_piece
            self._next_ran = _Ran(update=self._current, counts_for=None, measures=True)
            return "the times of backwards in one piece are measured"
        counts_for, reason = None, ""
        if self._trial is not None:
            candidate, counts = self._trial.next()
            self._current, counts_for = candidate.update, candidate if counts else None
            reason = f"a trial of {candidate.update.plan.name}"
            if self._trial.winner is not None:
                reason = self._end_trial(self._trial)
        elif self._joins and self._steps == _IN_ONE_PIECE.stop:
            reason = "the times of backwards in one piece have been measured"
        self._next_ran = _Ran(update=self._current, counts_for=counts_for)
        return reason

    def _end_trial(self, trial: Trial) -> str:
        """Keep the winner of a trial; return the reason."""
        assert trial.winner is not None
        self._chosen, self._trial = trial.winner.update, None
        if self._search is not None:
            self._winners[self._trying] = self._chosen.plan.name
            _log.info("new plan: %s; %s", self._chosen.plan.name, trial.reason)
        return trial.reason

    def _decide(self, measured: StepMetrics, ran: _Ran) -> None:
        """Take a step's measurements; start a search if they require it, on the rank that does."""
        assert self._search is not None
        whole = _is_whole(ran.update.plan)
        if whole:
            self._whole = measured
        else:
            self._apart = measured
        if ran.measures:
            return  # The state belongs to the plan that runs before and after these steps.
        if ran.update is not self._judged:
            self._judged = ran.update
            self._state = self._state.following(ran.update.scenario, ran.update.plan)
        expected: Mapping[int, Expected] = {}
        if self._forecaster is not None:
            expected = self._forecaster.expected(measured, self._clock())
        self._state, scenario, wanted = decide(measured, self._state, self._thresholds(), expected)
        if scenario is None or self._search.running or self._found:
            return
        if self._trial is not None and len(self._state.recent) < REMEMBERED:
            return  # The plan of this turn has run for too few steps to show a change.
        if self._joins and self._whole is None and not self._state.worse:
            return  # The time of backwards in one piece is about to be measured.
        if self._forecaster is not None:
            self._forecaster.requested(self._steps + 1)
        apart = _with_backwards(scenario, measured, self._apart)
        assert apart is not None, "the first plan has B and W apart"
        self._search.start(
            self._policy.replans,
            apart,
            self.plan.placement,
            effort=self._effort,
            reason=wanted,
            whole=_with_backwards(scenario, measured, self._whole) if self._joins else None,
            core_wait=measured.core_wait,
        )

    def _thresholds(self) -> Thresholds:
        """Return the thresholds, of which the durations grow with searches in vain."""
        usual = Thresholds()
        factor = 1 << min(self._useless, _MOST_PATIENCE)
        return replace(
            usual,
            worse=usual.worse * min(factor, _MOST_HASTE),
            better=usual.better * min(factor, _MOST_PATIENCE),
        )

    def _collect(self) -> None:
        """Take the answer of a finished search, on the rank that searches."""
        answer = None if self._search is None else self._search.answer()
        if answer is None:
            return
        found, error = answer
        if error:
            _log.warning("the plan stays, since there is no other: %s", error.splitlines()[0])
            self._state = self._state.replanned(self._state.planned, self._judged.plan)
            return
        updates = decode_updates(found)
        if self._policy.replans == "auto" and self._chosen.waits_ps:
            shorter, smaller = self._gains(updates)
            self._useless = 0 if shorter else self._useless + 1
            if not (shorter or smaller):
                return
        names = frozenset(each.plan.name for each in updates)
        for tried, winner in self._winners.items():
            if names <= tried and winner in names:
                updates = [each for each in updates if each.plan.name == winner]
        self._trying = names
        self._found = encode_updates(updates)

    def _gains(self, updates: Sequence[PlanUpdate]) -> tuple[bool, bool]:
        """Return whether a new plan is shorter than the plan in use, and whether it is smaller.

        A smaller plan holds fewer activations. Both plans are judged by the same measurements, of
        which the state is told if the plan in use stays.
        """
        used = self._chosen.plan
        alike = [each.scenario for each in updates if _is_whole(each.plan) == _is_whole(used)]
        if not alike:
            return True, False
        now, best = replay(used, alike[0]), replay(updates[0].plan, updates[0].scenario)
        shorter = best.makespan_ps < _GAIN * now.makespan_ps
        smaller = sum(best.peak_activations) < _GAIN * sum(now.peak_activations)
        if not (shorter or smaller):
            self._state = self._state.following(alike[0], self._judged.plan)
        return shorter, smaller

    def _receive(self, size: int) -> None:
        """Start the broadcast of plans of `size` bytes."""
        data = torch.empty(size, dtype=torch.uint8, device="cpu")
        if self._nic.rank == _PLANNER:
            data = torch.frombuffer(bytearray(self._found), dtype=torch.uint8)
        operation = Operation.broadcast(data.data_ptr(), size, DType.UINT8, _PLANNER, tag=self._tag)
        transfer = self._nic.post(operation)
        self._pending.add(transfer, data)
        self._broadcast = transfer, data

    def _adopt(self) -> str:
        """Follow or try the plans whose broadcast began a step ago; return the reason for them."""
        if self._broadcast is None:
            return ""
        transfer, data = self._broadcast
        self._broadcast = None
        transfer.wait()
        self._pending.poll()
        updates = decode_updates(data.numpy().tobytes())
        self._chosen, self._trial = updates[0], Trial(updates) if len(updates) > 1 else None
        self._found, self._announced = b"", False
        reason = self._chosen.reason
        if self._search is not None:
            if self._forecaster is not None:
                self._forecaster.adopted(self._steps + 1)
            self._judged = self._chosen
            self._state = self._state.replanned(self._chosen.scenario, self._chosen.plan)
            what = "new plan" if self._trial is None else f"a trial of {len(updates)} plans"
            _log.info("%s: %s", what, reason.splitlines()[0])
        return reason


def _is_whole(plan: PipelinePlan) -> bool:
    """Return whether the backwards of a plan run in one piece."""
    return any(each.kind is Kind.BW for program in plan.programs for each in program)


def _with_backwards(
    scenario: Scenario, measured: StepMetrics, like: StepMetrics | None
) -> Scenario | None:
    """Return the scenario with the times of backwards of the step `like`; None without the step.

    The times are scaled by the stages' forwards, since `scenario` is of the step `measured`, or of
    steps about it, in which the stages may have run at another speed.
    """
    if like is None or like is measured:
        return None if like is None else scenario
    speeds = [
        now_ps / max(1, then_ns)
        for now_ps, then_ns in zip(scenario.forward_ps, like.forward, strict=True)
    ]

    def scaled(times_ns: Sequence[int], least: int) -> tuple[int, ...]:
        return tuple(
            max(least, round(each * speed)) for each, speed in zip(times_ns, speeds, strict=True)
        )

    return replace(
        scenario,
        backward_input_ps=scaled(like.backward, 1),
        backward_weight_ps=scaled(like.weights, 0),
    )


def can_replan(policy: Policy, placement: Sequence[int]) -> bool:
    """Return whether a policy can make new plans for a placement of stages.

    Adaptra's plans exist only for one stage on each rank, in order.
    """
    if policy.replans == "adaptra":
        return tuple(placement) == one_each(len(placement))
    return bool(policy.replans)
