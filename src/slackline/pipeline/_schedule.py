"""The schedule class of the public API, used like one of torch.distributed.pipelining."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor
from torch import distributed as dist

from slackline.backend import SlacklineGroup, slackline_group
from slackline.env import Environment
from slackline.errors import ClosedError, PeerError, UsageError
from slackline.pipeline._batches import check_microbatches, merge, split
from slackline.pipeline._delegation import Delegation
from slackline.pipeline._device import DeviceLane, DevicePace
from slackline.pipeline._follow import Follower, can_follow
from slackline.pipeline._lane import HostLane, Lane
from slackline.pipeline._mail import Mail
from slackline.pipeline._news import News
from slackline.pipeline._plans import (
    Memory,
    forward_only,
    own_caps,
    plan_for,
    scenario_for,
)
from slackline.pipeline._policy import Policy, policy_of
from slackline.pipeline._record import StepRecord, overview, telemetry_of
from slackline.pipeline._runner import Inputs, Marching, NoPace, Pace, Runner
from slackline.pipeline._tags import take_tags
from slackline.pipeline._terms import Terms, agree, checked_stages, clock_name
from slackline.pipeline._worker import LossFunction, Worker
from slackline.plan.pipeline import PipelinePlan, Scenario
from slackline.telemetry import Writer

__all__ = ["Schedule"]

_log = logging.getLogger("slackline.pipeline")


class Schedule:
    """A pipeline schedule that runs instructions as they are ready, and replans with the network.

        stage = PipelineStage(module, rank, ranks, device)
        schedule = slackline.pipeline.Schedule(stage, n_microbatches=12, loss_fn=loss_fn)
        schedule.step(x)                          # on the first stage
        losses = []
        schedule.step(target=y, losses=losses)    # on the last one

    Every rank of the stages' group constructs the schedule at the same time and calls `step`
    equally often. Only one thread may use the schedule. Gradients have the same bits as if one
    process ran the microbatches one after the other. An error in a step ends the group on every
    rank, since no rank could know the messages that other ranks still wait for.
    """

    def __init__(
        self,
        stages: Any,
        n_microbatches: int,
        loss_fn: LossFunction | None = None,
        *,
        schedule: str | PipelinePlan = "auto",
        policy: str | None = None,
        memory: Memory = None,
        scale_grads: bool = True,
        full_backward: bool = False,
        split_backward: bool | None = None,
        args_chunk_spec: Any = None,
        kwargs_chunk_spec: Any = None,
        output_merge_spec: Any = None,
        delegation: str = "auto",
        plan_effort: float = 1.0,
        telemetry: Path | None = None,
        keep_records: int = 64,
    ) -> None:
        """Agree with all ranks on the schedule, make the plan and start the transport.

        `stages`: torch's PipelineStage of this rank, or a list of several.
        `loss_fn(output, target)`: passed on every rank. None: `step` runs forwards only.
        `schedule`: a name of slackline.plan.pipeline.SCHEDULES, or a plan.
        `policy`: "fixed", "ready", "adaptra" or "auto". None: "auto" for the schedule "auto",
        "adaptra" for "adaptra", else "ready".
        `memory`: the activations that a stage may hold, for all stages or for each. None: the
        plan's own peak, but no limit for "auto", "ready", "slack" and "adaptra".
        `scale_grads`: divide gradients by the number of microbatches, as torch does.
        `full_backward`: run "gpipe", "1f1b" and "interleaved" with backwards in one piece (BW).
        `split_backward`: separate B from W. None: separate them if nothing is computed twice.
        `delegation`: send messages through the engine ("always"), in the computing thread
        ("never"), or on each link in the way that measures cheaper ("auto").
        `telemetry`: the directory for this rank's step records. None reads SLACKLINE_TELEMETRY.
        `plan_effort`: a factor of the search time of "auto".
        `keep_records`: the number of steps that `records` holds.

        Blocks until all ranks have made the same call. Raises UsageError for arguments that do not
        fit together, and MismatchError if the ranks' arguments differ.
        """
        if n_microbatches < 1:
            raise UsageError(f"n_microbatches must be a positive integer, not {n_microbatches}")
        mine = checked_stages(stages)
        self._policy: Policy = policy_of(policy, schedule)
        self._microbatches = n_microbatches
        self._loss_fn = loss_fn
        self._asked = schedule
        self._specs = args_chunk_spec, kwargs_chunk_spec, output_merge_spec
        self._group: SlacklineGroup = slackline_group(mine[0].group)
        self._nic = self._group.nic
        count = mine[0].num_stages
        terms = Terms(
            num_stages=count,
            microbatches=n_microbatches,
            schedule=schedule if isinstance(schedule, str) else repr(schedule),
            policy=self._policy.name,
            memory=str(memory),
            has_loss=loss_fn is not None,
            full_backward=full_backward,
            effort=plan_effort,
            mine=tuple(stage.stage_index for stage in mine),
            clock=clock_name(),
        )
        placement, clocks = agree(terms, mine[0].group)
        scenario = scenario_for(count, n_microbatches, memory)
        plan = plan_for(
            schedule, placement, scenario, full_backward=full_backward, effort=plan_effort
        )
        if self._policy.within_plan(schedule):
            scenario = own_caps(plan, scenario)
        self._scenario = scenario
        self._plan = plan
        self._follower: Follower | None = None
        if count > 1 and can_follow(self._policy, placement):
            news = News(self._nic, placement, clocks, take_tags(self._nic, 1))
            self._follower = Follower(
                self._policy, plan, scenario, news, effort=plan_effort, tells=self._nic.rank == 0
            )
        self._forwards = forward_only(placement, n_microbatches)
        first_tag = take_tags(self._nic, Mail.tags(count, n_microbatches))
        device = mine[0].device
        self._delegation = Delegation(delegation)
        self._lane: Lane = HostLane(mine[0].group)
        pace: Pace = NoPace()
        if device.type == "cuda":
            self._lane, pace = DeviceLane(device), DevicePace(device)
        self._mail = Mail(self._nic, self._lane, placement, n_microbatches, first_tag)
        self._workers = {
            stage.stage_index: Worker(
                stage,
                n_microbatches,
                loss_fn=loss_fn,
                scale=scale_grads,
                split=split_backward,
                completed=self._completed(stage.stage_index),
            )
            for stage in mine
        }
        self._runner = Runner(
            self._nic.rank,
            self._workers,
            self._mail,
            pace,
            self._group.default_timeout,
            self._delegation.inline,
        )
        self._last = self._workers.get(count - 1)
        self._step = 0
        self._records: list[StepRecord] = []
        self._keep = keep_records
        self._ended = ""
        directory = Environment.read().telemetry if telemetry is None else telemetry
        self._writer = None if directory is None else Writer(directory, dist.get_rank())

    @property
    def plan(self) -> PipelinePlan:
        """The plan that the next step follows, unless new measurements replace it."""
        return self._plan

    @property
    def policy(self) -> str:
        """The name of the policy, such as "auto"."""
        return self._policy.name

    @property
    def scenario(self) -> Scenario:
        """The times, delays and memory that the plan was made for."""
        return self._scenario

    @property
    def records(self) -> Sequence[StepRecord]:
        """The records of the latest training steps on this rank, with the oldest first."""
        return tuple(self._records)

    def report(self) -> str:
        """Return a text to print: the latest step in detail, and a line for each recorded step."""
        if not self._records:
            return "no step has been taken"
        carried = "".join(
            f"  link {link}: {reason}\n" for link, reason in self._delegation.reasons().items()
        )
        return f"{self._records[-1]}\n{carried}{overview(self._records)}"

    def step(
        self,
        *args: Any,
        target: Any = None,
        losses: list[Tensor] | None = None,
        return_outputs: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Run one training step on a batch, which is cut into microbatches along dimension 0.

        The first stage's rank passes `args`, and the last stage's rank `target`. `kwargs` go to the
        stages of the rank that passes them. On the last stage's rank, `losses` is filled with the
        loss of each microbatch. Returns the last stage's merged outputs on its rank, None on the
        others. Blocks until this rank's part is done.
        """
        return self._batch(args, kwargs, target, losses, return_outputs, training=True)

    def eval(
        self,
        *args: Any,
        target: Any = None,
        losses: list[Tensor] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run the forwards of a batch without gradients; the arguments are those of `step`."""
        return self._batch(args, kwargs, target, losses, True, training=False)

    def step_microbatches(
        self,
        inputs: Sequence[Any] | None = None,
        *,
        targets: Sequence[Any] | None = None,
        keywords: Sequence[Mapping[str, Any]] | None = None,
        losses: list[Tensor] | None = None,
    ) -> list[Any] | None:
        """Run one training step on microbatches that the caller has made, of any shapes.

        Each of `inputs` is a tensor or a tuple of arguments. Returns the list of the last stage's
        outputs on its rank, None on the others.
        """
        with self._ending_on_error():
            given = check_microbatches(self._microbatches, inputs, keywords, targets)
            outputs: list[Any] | None = self._run(given, losses, training=True)
        return outputs

    def _batch(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        target: Any,
        losses: list[Tensor] | None,
        return_outputs: bool,
        *,
        training: bool,
    ) -> Any:
        with self._ending_on_error():
            args_spec, kwargs_spec, merge_spec = self._specs
            given = split(
                args,
                kwargs,
                target,
                self._microbatches,
                args_spec=args_spec,
                kwargs_spec=kwargs_spec,
            )
            outputs = self._run(given, losses, training=training)
        if outputs is None or not return_outputs:
            return None
        return merge(outputs, merge_spec)

    def _run(self, given: Inputs, losses: list[Tensor] | None, *, training: bool) -> Any:
        self._check(given, losses)
        training = training and self._loss_fn is not None
        step, self._step = self._step, self._step + 1
        marching = self._marching() if training else self._forward_marching()
        record = self._runner.run(step, marching, given, training=training)
        if training:
            self._keep_record(record)
            if self._follower is not None:
                self._follower.tell(record)
        if self._last is None:
            return None
        if losses is not None:
            losses.clear()
            losses.extend(loss for loss in self._last.losses if loss is not None)
        return list(self._last.outputs)

    def _check(self, given: Inputs, losses: list[Tensor] | None) -> None:
        if 0 in self._workers and not (given.arguments[0] or given.keywords[0]):
            raise UsageError("the first stage's rank must give step its inputs")
        if self._last is None or self._loss_fn is None:
            return
        if losses is not None and not isinstance(losses, list):
            raise UsageError(f"losses must be a list to fill, not a {type(losses).__name__}")

    def _marching(self) -> Marching:
        change = ""
        if self._follower is not None:
            change = self._follower.next()
            self._plan, self._scenario = self._follower.plan, self._follower.scenario
        waits_ps = self._follower.waits_ps if self._follower is not None else ()
        return Marching(
            plan=self._plan,
            order=self._policy.order,
            scenario=self._scenario,
            policy=self._policy.name,
            change=change,
            waits_ps=waits_ps[self._nic.rank] if waits_ps else (),
        )

    def _forward_marching(self) -> Marching:
        unlimited = self._scenario.capped([None] * self._scenario.stages)
        return Marching(
            plan=self._forwards, order="ready", scenario=unlimited, policy=self._policy.name
        )

    def _keep_record(self, record: StepRecord) -> None:
        self._records.append(record)
        self._delegation.learn(record)
        if self._writer is not None:
            self._writer.write(telemetry_of(record))
        del self._records[: -self._keep]

    def _completed(self, stage: int) -> Callable[[], None]:
        return lambda: self._runner.reduction_started(stage)

    @contextmanager
    def _ending_on_error(self) -> Iterator[None]:
        """End the group on every rank if the body raises, since no rank can go on alone."""
        if self._ended:
            raise ClosedError(f"the schedule ended: {self._ended}", rank=self._nic.rank)
        step = self._step
        try:
            yield
        except BaseException as error:
            self._ended = f"step {step} failed with {type(error).__name__}: {error}"
            if self._nic.size > 1:
                # The group is aborted even if a peer was lost: not every rank waits for that peer.
                here = f"rank {self._nic.rank} has left step {step} of a pipeline: "
                self._nic.abort(f"{'' if isinstance(error, PeerError) else here}{error}")
            raise
