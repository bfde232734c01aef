"""The schedule class of the public API, used like one of torch.distributed.pipelining."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from slackline.backend import SlacklineGroup, slackline_group
from slackline.env import Environment
from slackline.errors import ClosedError, PeerError, SlacklineError, UsageError
from slackline.pipeline._agreement import RankParameters, agree, checked_stages, clock_name
from slackline.pipeline._batches import check_microbatches, split
from slackline.pipeline._config import ScheduleConfig
from slackline.pipeline._delegation import Delegation
from slackline.pipeline._device import DeviceThrottle
from slackline.pipeline._forecasts import forecaster_for
from slackline.pipeline._message_buffers import MessageBuffers
from slackline.pipeline._outputs import merge
from slackline.pipeline._plan_telemetry import PlanTelemetry
from slackline.pipeline._plans import (
    Memory,
    forward_only,
    own_caps,
    plan_for,
    scenario_for,
)
from slackline.pipeline._policy import Policy, policy_of
from slackline.pipeline._record import StepRecord, overview, telemetry_of
from slackline.pipeline._runner import Inputs, LaunchThrottle, Runner, StepConfig
from slackline.pipeline._settings import Settings
from slackline.pipeline._transport import Transport
from slackline.pipeline._worker import LossFunction, Worker
from slackline.pipeline.replan import MetricsExchange, Replanner, can_replan
from slackline.plan.pipeline import PipelinePlan, Scenario
from slackline.records import DEFAULT_LIMIT_BYTES

__all__ = ["Schedule"]

_log = logging.getLogger("slackline.pipeline")


class Schedule:
    """A pipeline schedule that runs ready instructions and makes new plans as the network changes.

        stage = PipelineStage(module, rank, ranks, device)
        schedule = slackline.pipeline.Schedule(stage, n_microbatches=12, loss_fn=loss_fn)
        schedule.step(x)                          # on the first stage
        losses = []
        schedule.step(target=y, losses=losses)    # on the last stage

    Every rank of the stages' group constructs the schedule at the same time and calls `step`
    equally often. Only one thread may use the schedule. Gradients are bit-identical to the
    gradients of one process that runs the microbatches one after the other. An error in a step ends
    the group on every rank, since no rank can know which messages the other ranks still wait for.
    """

    def __init__(
        self,
        stages: Any,
        n_microbatches: int,
        loss_fn: LossFunction | None = None,
        args_chunk_spec: Any = None,
        kwargs_chunk_spec: Any = None,
        output_merge_spec: Any = None,
        *,
        scale_grads: bool = True,
        schedule: str | PipelinePlan | None = None,
        memory: Memory = None,
        config: ScheduleConfig | None = None,
    ) -> None:
        """Agree with all ranks on the schedule, make the plan and start the transport.

        The parameters up to `scale_grads` are those of torch's schedules.

        `stages`: torch's PipelineStage of this rank, or a list of several.
        `loss_fn(output, target)`: passed on every rank. None: `step` runs forwards only.
        `scale_grads`: divide gradients by the number of microbatches.
        `schedule`: a name of slackline.plan.pipeline.SCHEDULES, or a plan. None reads
        SLACKLINE_SCHEDULE; without that variable the schedule is "auto".
        `memory`: the most activations that a stage may hold: one number, or one for each stage.
        None reads SLACKLINE_SCHEDULE_MEMORY; without that variable it is the plan's own peak, but
        no limit for "auto", "ready", "slack" and "adaptra".
        `config`: all other options. None: their defaults.

        Blocks until all ranks have made the same call. Raises UsageError for arguments that do not
        fit together, and MismatchError if the ranks' arguments differ.
        """
        if n_microbatches < 1:
            raise UsageError(f"n_microbatches must be a positive integer, not {n_microbatches}")
        config = ScheduleConfig() if config is None else config
        environment = Environment.read()
        settings = Settings.choose(schedule, memory, config, environment)
        schedule, memory = settings.schedule, settings.memory
        mine = checked_stages(stages)
        self._config = config
        self._policy: Policy = policy_of(config.policy, schedule)
        self._microbatches = n_microbatches
        self._loss_fn = loss_fn
        self._specs = args_chunk_spec, kwargs_chunk_spec, output_merge_spec
        self._group: SlacklineGroup = slackline_group(mine[0].group)
        self._nic = self._group.nic
        count = mine[0].num_stages
        self._job_rank = dist.get_rank()
        self._telemetry = PlanTelemetry(self._job_rank)
        forecaster = None
        if config.forecast:
            links, write = count - 1, self._telemetry.write
            forecaster = forecaster_for(self._policy, links, self._job_rank, write)
        scenario = scenario_for(count, n_microbatches, memory, config)
        parameters = _parameters(
            mine, n_microbatches, schedule, memory, config, self._policy, loss_fn
        )
        placement, clocks, joins = agree(parameters, mine[0].group)
        plan = plan_for(schedule, placement, scenario, config)
        if self._policy.within_plan(schedule):
            scenario = own_caps(plan, scenario)
        self._scenario = scenario
        self._plan = plan
        self._replanner: Replanner | None = None
        if count > 1 and can_replan(self._policy, placement):
            tag = self._nic.tag_allocator.reserve_messages(2)
            metrics = MetricsExchange(self._nic, placement, clocks, tag)
            self._replanner = Replanner(
                self._policy,
                plan,
                scenario,
                self._nic,
                metrics,
                tag=tag + 1,
                effort=config.plan_effort,
                joins=joins,
                forecaster=forecaster,
            )
        self._forwards = forward_only(placement, n_microbatches)
        first_tag = self._nic.tag_allocator.reserve_messages(Transport.tags(count, n_microbatches))
        device = mine[0].device
        self._delegation = Delegation(settings.delegation)
        buffers = MessageBuffers(mine[0].group, self._group.staging_device(device))
        on_cuda = device.type == "cuda"
        throttle: LaunchThrottle | None = DeviceThrottle(device) if on_cuda else None
        self._transport = Transport(
            self._nic, buffers, placement, n_microbatches, first_tag, self._group.group_name
        )
        self._workers = {
            stage.stage_index: Worker(
                stage,
                n_microbatches,
                loss_fn=loss_fn,
                scale=scale_grads,
                split=config.split_backward,
                completed=self._completed(stage.stage_index),
            )
            for stage in mine
        }
        self._runner = Runner(
            self._nic.rank,
            self._workers,
            self._transport,
            throttle,
            self._group.default_timeout,
            self._delegation.inline,
        )
        self._last = self._workers.get(count - 1)
        self._step = 0
        self._records: list[StepRecord] = []
        self._ended = ""
        self._open_telemetry(schedule, settings, environment)

    def _open_telemetry(
        self, schedule: str | PipelinePlan, settings: Settings, environment: Environment
    ) -> None:
        """Begin the telemetry with the values of the settings, and with the choice of the plan."""
        config = self._config
        directory = config.telemetry or environment.telemetry
        limit = environment.telemetry_limit or DEFAULT_LIMIT_BYTES
        if directory is not None:
            self._telemetry.open(directory, limit)
        for setting in settings.records(self._job_rank):
            self._telemetry.write(setting)
        how = "is the default" if settings.origins["schedule"] == "default" else "was asked for"
        asked = f'"{schedule}" {how}' if isinstance(schedule, str) else "the plan was given"
        why = "follows from the schedule" if config.policy is None else "was asked for"
        self._telemetry.decided(self._plan, f'{asked}; the policy "{self._policy.name}" {why}')

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
        """Return the latest step in detail and a line for each recorded step, as text to print."""
        if not self._records:
            return "no step has been taken"
        carried = "".join(
            f"  link {link}: {reason}\n" for link, reason in self._delegation.reasons().items()
        )
        return f"{self._records[-1]}\n{carried}{overview(self._records)}"

    def close(self) -> None:
        """Free the schedule's message buffers, on this rank alone; further steps raise ClosedError.

        Blocks until queued sends are posted. Another schedule may then use the group. Raises the
        error of a send that has failed, unless a step has raised an error before.
        """
        failed, self._ended = self._ended, self._ended or "it was closed"
        try:
            self._transport.close()
        except SlacklineError:
            if not failed:
                raise

    def step(
        self,
        *args: Any,
        target: Any = None,
        losses: list[Tensor] | None = None,
        return_outputs: bool = True,
        loss_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run one training step on a batch, which is cut into microbatches along dimension 0.

        The first stage's rank passes `args`, and the last stage's rank `target`. `kwargs` go to the
        stages of the rank that passes them. Values that are not tensors are given to every
        microbatch. On the last stage's rank, `losses` is filled with the loss of each microbatch,
        and `loss_kwargs` are passed to `loss_fn` with every microbatch, uncut. Returns the merged
        outputs on the last stage's rank, and None on all other ranks: tensors are concatenated
        along dimension 0, and tensors without dimensions stacked. With `return_outputs` False
        nothing is returned, and each output is freed after its backward. Blocks until this rank's
        part is done.
        """
        with self._ending_on_error():
            self._check_grad_mode()
            given = self._split(args, kwargs, target, self._loss_keywords(loss_kwargs))
            outputs = self._run(given, losses, training=True, keeps=return_outputs)
        return None if outputs is None else merge(outputs, self._specs[2])

    def eval(
        self,
        *args: Any,
        target: Any = None,
        losses: list[Tensor] | None = None,
        return_outputs: bool = True,
        loss_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run the forwards of a batch without gradients; the arguments are those of `step`.

        The loss is computed if `target` or `losses` is given.
        """
        with self._ending_on_error():
            wanted = target is not None or losses is not None
            keywords = self._loss_keywords(loss_kwargs) if wanted else None
            given = self._split(args, kwargs, target, keywords)
            outputs = self._run(given, losses, training=False, keeps=return_outputs)
        return None if outputs is None else merge(outputs, self._specs[2])

    def step_microbatches(
        self,
        inputs: Sequence[Any] | None = None,
        *,
        targets: Sequence[Any] | None = None,
        keywords: Sequence[Mapping[str, Any]] | None = None,
        losses: list[Tensor] | None = None,
        return_outputs: bool = True,
        loss_kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any] | None:
        """Run one training step on microbatches that the caller has made, of any shapes.

        Each of `inputs` is a tensor or a tuple of arguments. Returns the list of outputs on the
        last stage's rank, and None on all other ranks. The other arguments are those of `step`.
        """
        with self._ending_on_error():
            self._check_grad_mode()
            found = self._loss_keywords(loss_kwargs)
            given = check_microbatches(self._microbatches, inputs, keywords, targets, found)
            return self._run(given, losses, training=True, keeps=return_outputs)

    def _split(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        target: Any,
        loss_keywords: Mapping[str, Any] | None,
    ) -> Inputs:
        args_spec, kwargs_spec, _ = self._specs
        return split(
            args,
            kwargs,
            target,
            self._microbatches,
            loss_keywords=loss_keywords,
            args_spec=args_spec,
            kwargs_spec=kwargs_spec,
        )

    def _run(
        self, given: Inputs, losses: list[Tensor] | None, *, training: bool, keeps: bool
    ) -> list[Any] | None:
        self._check(given, losses)
        training = training and self._loss_fn is not None
        step, self._step = self._step, self._step + 1
        config = self._step_config() if training else self._forward_config()
        record = self._runner.run(step, config, given, training=training, keeps_outputs=keeps)
        if training:
            self._keep_record(record)
            if self._replanner is not None:
                self._replanner.publish(record)
        if self._last is None:
            return None
        found, outputs = self._last.take_results()
        if losses is not None:
            losses.clear()
            losses.extend(found)
        return outputs if keeps else None

    def _check(self, given: Inputs, losses: list[Tensor] | None) -> None:
        if 0 in self._workers and not (given.arguments[0] or given.keywords[0]):
            raise UsageError("the first stage's rank must give step its inputs")
        if losses is None:
            return
        if not isinstance(losses, list):
            raise UsageError(f"losses must be a list to fill, not a {type(losses).__name__}")
        if self._last is not None and self._loss_fn is None:
            raise UsageError("there are no losses to fill in, because the schedule has no loss_fn")

    def _check_grad_mode(self) -> None:
        if self._loss_fn is not None and not torch.is_grad_enabled():
            raise UsageError(
                "step needs gradients, but was called within torch.no_grad() or "
                "torch.inference_mode(); `eval` runs the forwards without gradients"
            )

    @staticmethod
    def _loss_keywords(given: Mapping[str, Any] | None) -> Mapping[str, Any]:
        if given is None:
            return {}
        if not isinstance(given, Mapping):
            raise UsageError(
                f"loss_kwargs must be a dict of loss_fn's arguments, not a {type(given).__name__}"
            )
        return given

    def _step_config(self) -> StepConfig:
        change = ""
        if self._replanner is not None:
            change = self._replanner.next()
            measured = self._replanner.scenario is not self._scenario
            self._plan, self._scenario = self._replanner.plan, self._replanner.scenario
            if measured and not self._nic.rank:  # One rank tells the time for all ranks.
                self._telemetry.promised(self._plan, self._scenario)
        if change:
            self._telemetry.decided(self._plan, change)
        waits_ps = self._replanner.waits_ps if self._replanner is not None else ()
        return StepConfig(
            plan=self._plan,
            order=self._policy.order,
            scenario=self._scenario,
            policy=self._policy.name,
            change=change,
            waits_ps=waits_ps[self._nic.rank] if waits_ps else (),
        )

    def _forward_config(self) -> StepConfig:
        unlimited = self._scenario.capped([None] * self._scenario.stages)
        return StepConfig(
            plan=self._forwards, order="ready", scenario=unlimited, policy=self._policy.name
        )

    def _keep_record(self, record: StepRecord) -> None:
        self._records.append(record)
        self._delegation.learn(record)
        if self._telemetry.is_read:
            self._telemetry.write(telemetry_of(record, self._job_rank))
        if self._config.on_step is not None:
            self._config.on_step(record)
        del self._records[: -self._config.keep_records]

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


def _parameters(
    mine: Sequence[Any],
    microbatches: int,
    schedule: str | PipelinePlan,
    memory: Memory,
    config: ScheduleConfig,
    policy: Policy,
    loss_fn: LossFunction | None,
) -> RankParameters:
    """Return the parameters on which the ranks must agree, and the stages of this rank."""
    return RankParameters(
        num_stages=mine[0].num_stages,
        microbatches=microbatches,
        schedule=schedule if isinstance(schedule, str) else repr(schedule),
        policy=policy.name,
        memory=str(memory),
        stage_times=str(config.stage_times),
        link_delays=str(config.link_delays),
        has_loss=loss_fn is not None,
        full_backward=config.full_backward,
        effort=config.plan_effort,
        forecast=config.forecast,
        split=config.split_backward,
        mine=tuple(stage.stage_index for stage in mine),
        clock=clock_name(),
    )
