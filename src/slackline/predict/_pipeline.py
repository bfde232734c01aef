"""A measured run of a pipeline: its plan, and for each step the times of stages and links."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from statistics import median

from slackline.env import Environment
from slackline.errors import UsageError
from slackline.history import files_of, read_all, telemetry_of
from slackline.plan.pipeline import (
    Instruction,
    Kind,
    Order,
    PipelinePlan,
    Scenario,
    StageMemory,
    held_after,
    validate,
)
from slackline.predict._job import Job, read_job
from slackline.records import FileHeader, PipelineStep, Setting

__all__ = ["Cap", "PipelineRun", "PipelineTimes", "has_pipeline", "load_pipeline", "peaks_of"]

Cap = Fraction | int | None
"""The number of activations that a stage may hold; None: no limit."""
_PS_PER_NS = 1000
_LEAST_STEPS = 3
_ORDERS: Mapping[str, Order] = {
    "fixed": "fixed",
    "ready": "ready",
    "adaptra": "fixed",
    "auto": "planned",
}
"""The order of the simulator for each policy of the runtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTimes:
    """The measured times of one step, in nanoseconds; a value for each stage or link."""

    wall_ns: int
    """The duration of the step on the slowest rank."""
    rest_ns: int
    """The part of the step before the first and after the last computation of any rank."""
    forward_ns: tuple[int, ...]
    """The median time of a forward on each stage."""
    input_ns: tuple[int, ...]
    """The median time of a backward for the input, or half of that of a full backward."""
    weight_ns: tuple[int, ...]
    """The median time of a backward for the weights, or half of that of a full backward."""
    down_ns: tuple[int, ...]
    """The median delay of an activation over each link."""
    up_ns: tuple[int, ...]
    """The median delay of a gradient over each link."""


@dataclass(frozen=True, kw_only=True)
class PipelineRun:
    """A run of a pipeline whose steps were measured."""

    name: str
    """The directory that the run was read from, for messages."""
    plan: PipelinePlan
    """The instructions of the last step, in the order of their computation."""
    policy: str
    """The policy of the runtime."""
    peaks: tuple[int, ...]
    """The most activations that each stage held."""
    full_backward: bool
    """Whether a backward was one instruction, for input and weights."""
    steps: tuple[PipelineTimes, ...]
    """The measured steps with this plan."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """The schedule's settings on the first rank, by name; empty if the telemetry has none."""
    job: Job | None = None
    """The command line of the run; None if it is not known."""

    @property
    def caps(self) -> tuple[Cap, ...]:
        """The number of activations that the run's setting lets each stage hold."""
        text = self.settings["schedule_memory"].value if "schedule_memory" in self.settings else ""
        found = Environment.read({"SLACKLINE_SCHEDULE_MEMORY": text}).schedule_memory
        return found if isinstance(found, tuple) else (found,) * self.plan.stages

    @property
    def delay_ns(self) -> int:
        """The median measured delay of a message, over all links and steps."""
        return _median(each for step in self.steps for each in (*step.down_ns, *step.up_ns))

    @property
    def wall_ns(self) -> tuple[int, ...]:
        """The measured duration of each step."""
        return tuple(step.wall_ns for step in self.steps)

    @property
    def order(self) -> Order:
        """The order in which the simulator runs the plan, as the policy demands."""
        return _ORDERS[self.policy]

    def scenario(self, times: PipelineTimes, caps: Sequence[Cap]) -> Scenario:
        """Return the scenario of a step, with a cap of activations for each stage."""
        return Scenario(
            microbatches=self.plan.microbatches,
            forward_ps=_picoseconds(times.forward_ns, 1),
            backward_input_ps=_picoseconds(times.input_ns, 1),
            backward_weight_ps=_picoseconds(times.weight_ns, 0),
            forward_delay_ps=_picoseconds(times.down_ns, 0),
            backward_delay_ps=_picoseconds(times.up_ns, 0),
            memory=tuple(StageMemory.of_microbatches(cap) for cap in caps),
        )


def load_pipeline(directory: Path, report: Callable[[str], None] | None = None) -> PipelineRun:
    """Read the run of a pipeline whose telemetry is in `directory`.

    `report` receives a sentence for each damaged line; without it such a line raises UsageError.
    Raises UsageError that names the file for records from which no prediction can be made.
    """
    folder = telemetry_of(directory)
    files = files_of(folder)
    if not files:
        raise UsageError(f"there is no telemetry in {directory}: it has no rank-*.jsonl")
    records = [_records(path, report) for path in files]
    ranks = [steps for steps, _ in records]
    numbers = _alike(files, ranks)
    last = [steps[numbers[-1]] for steps in ranks]
    programs = tuple(tuple(map(Instruction.parse, step.tokens)) for step in last)
    placement = _placement(directory, programs)
    plan = PipelinePlan(
        name=last[0].plan,
        microbatches=1 + max(each.microbatch for each in programs[0]),
        placement=placement,
        programs=programs,
    )
    kinds = {each.kind for program in programs for each in program}
    steps = tuple(_times([steps[number] for steps in ranks], plan, directory) for number in numbers)
    run = PipelineRun(
        name=str(directory),
        plan=plan,
        policy=last[0].policy,
        peaks=(plan.microbatches,) * plan.stages,
        full_backward=Kind.BW in kinds,
        steps=steps,
        settings=records[0][1],
        job=read_job(directory if folder != directory else directory.parent),
    )
    if run.policy not in _ORDERS:
        raise UsageError(f"{directory} has the unknown policy {run.policy!r}")
    scenario = run.scenario(steps[-1], (None,) * plan.stages)
    try:
        validate(plan, scenario)
    except UsageError as error:
        raise UsageError(
            f"{directory}: the instructions of step {numbers[-1]} are no step of one pipeline: "
            f"{error}"
        ) from None
    return replace(run, peaks=peaks_of(plan, scenario))


def has_pipeline(directory: Path) -> bool:
    """Return whether the directory has telemetry of a pipeline's steps."""
    first = next(iter(files_of(telemetry_of(directory))), None)
    return first is not None and any(
        isinstance(record, PipelineStep) for record in read_all(first, _ignore)
    )


def _ignore(sentence: str) -> None:
    """Ignore a damaged line: the reader of the run reports it."""


def _records(
    path: Path, report: Callable[[str], None] | None
) -> tuple[dict[int, PipelineStep], dict[str, Setting]]:
    """Return a rank's steps by number, and its settings by name."""
    found: dict[int, PipelineStep] = {}
    settings: dict[str, Setting] = {}
    processes = set()
    for record in read_all(path, report):
        if isinstance(record, FileHeader):
            processes.add(record.process)
        elif isinstance(record, PipelineStep):
            found[record.step] = record
        elif isinstance(record, Setting):
            settings[record.name] = record
    if len(processes) > 1:
        raise UsageError(
            f"{path} has the records of {len(processes)} processes: give the telemetry of one run"
        )
    if not found:
        raise UsageError(f"{path} has no steps of a pipeline")
    return found, settings


def _alike(files: Sequence[Path], ranks: Sequence[dict[int, PipelineStep]]) -> list[int]:
    """Return the last steps of all ranks with one plan, without the first of them.

    A plan that was adopted too short a time before the end is left out for the plan before it.
    """
    common = sorted(set.intersection(*(set(steps) for steps in ranks)))
    chosen: list[int] = []
    for number in reversed(common):
        names = {(steps[number].plan, steps[number].policy) for steps in ranks}
        amount = sorted(ranks[0][number].tokens)
        if len(names) > 1:
            break
        if chosen:
            latest = ranks[0][chosen[-1]]
            if names != {(latest.plan, latest.policy)} or amount != sorted(latest.tokens):
                break
        chosen.append(number)
        if any(steps[number].change for steps in ranks):
            if len(chosen) >= _LEAST_STEPS:
                break
            chosen = []
    chosen = chosen[::-1][1:]  # Memory and connections settle in the first step.
    if len(chosen) < 2:
        raise UsageError(
            f"{files[0].parent} has {len(chosen) + 1 if chosen else 0} successive steps at its end "
            f"with the same plan on all ranks; at least {_LEAST_STEPS} are needed"
        )
    return chosen


def _placement(directory: Path, programs: Sequence[Sequence[Instruction]]) -> tuple[int, ...]:
    """Return the rank of each stage; raise UsageError for replicas and missing stages."""
    rank_of: dict[int, int] = {}
    for rank, program in enumerate(programs):
        for stage in {each.stage for each in program}:
            if stage in rank_of:
                raise UsageError(
                    f"{directory} has stage {stage} on the ranks {rank_of[stage]} and {rank}: "
                    "replicas of a pipeline cannot be predicted"
                )
            rank_of[stage] = rank
    for stage in range(len(rank_of)):
        if stage not in rank_of:
            raise UsageError(f"{directory} has no telemetry of a rank with stage {stage}")
    return tuple(rank_of[stage] for stage in range(len(rank_of)))


def _times(steps: Sequence[PipelineStep], plan: PipelinePlan, directory: Path) -> PipelineTimes:
    durations: dict[tuple[int, Kind], list[int]] = {}
    delays: dict[tuple[int, bool], list[int]] = {}
    for step in steps:
        for token, start, end in zip(step.tokens, step.start_ns, step.end_ns, strict=True):
            instruction = Instruction.parse(token)
            durations.setdefault((instruction.stage, instruction.kind), []).append(end - start)
        for token, delay in zip(step.senders, step.delays_ns, strict=True):
            if delay < 0:
                raise UsageError(
                    f"{directory}: in step {step.step} the message of {token} arrives on rank "
                    f"{step.rank} {-delay} ns before it is sent: the clocks of the ranks disagree"
                )
            sender = Instruction.parse(token)
            up = sender.kind.backward
            delays.setdefault((sender.stage - up, up), []).append(delay)
    wall_ns = max(step.wall_ns for step in steps)
    first_ns = min(step.time_ns + step.start_ns[0] for step in steps)
    last_ns = max(step.time_ns + step.end_ns[-1] for step in steps)
    backward = [_backward(durations, stage) for stage in range(plan.stages)]
    links = range(plan.stages - 1)
    return PipelineTimes(
        wall_ns=wall_ns,
        rest_ns=max(0, wall_ns - (last_ns - first_ns)),
        forward_ns=tuple(_median(durations[stage, Kind.F]) for stage in range(plan.stages)),
        input_ns=tuple(one for one, _ in backward),
        weight_ns=tuple(other for _, other in backward),
        down_ns=tuple(_median(delays.get((link, False), ())) for link in links),
        up_ns=tuple(_median(delays.get((link, True), ())) for link in links),
    )


def _backward(durations: Mapping[tuple[int, Kind], list[int]], stage: int) -> tuple[int, int]:
    """Return a stage's times of backward for input and weights; a full backward is halved."""
    full = _median(durations.get((stage, Kind.BW), ()))
    if full:
        return full // 2, full - full // 2
    return _median(durations.get((stage, Kind.B), ())), _median(durations.get((stage, Kind.W), ()))


def _median(values: Iterable[int]) -> int:
    found = list(values)
    return round(median(found)) if found else 0


def _picoseconds(times_ns: Sequence[int], least: int) -> tuple[int, ...]:
    return tuple(max(least, each * _PS_PER_NS) for each in times_ns)


def peaks_of(plan: PipelinePlan, scenario: Scenario) -> tuple[int, ...]:
    """Return the most activations that each stage holds in the plan's order."""
    held, peaks = [0] * plan.stages, [0] * plan.stages
    for _, _, instruction in plan.cells():
        stage = instruction.stage
        held[stage] += held_after(instruction, scenario)
        peaks[stage] = max(peaks[stage], held[stage])
    return tuple(peaks)
