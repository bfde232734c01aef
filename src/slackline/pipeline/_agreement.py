"""The agreement of all ranks on a schedule's parameters and on the rank of each stage."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torch import distributed as dist

from slackline.errors import MismatchError, UsageError
from slackline.pipeline._torch import Stage, is_stage, sources_of

__all__ = ["RankParameters", "agree", "checked_stages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankParameters:
    """The parameters of a pipeline schedule on one rank, which all ranks compare."""

    num_stages: int
    microbatches: int
    schedule: str
    """The name of the schedule, or the text of a whole plan."""
    policy: str
    memory: str
    stage_times: str
    link_delays: str
    has_loss: bool
    full_backward: bool
    effort: float
    forecast: bool
    split: bool | None
    """Whether the rank keeps B and W apart: `split_backward` of the configuration."""
    mine: tuple[int, ...]
    """The indices of this rank's stages."""
    clock: str
    """The name of this rank's monotonic clock; ranks with the same name share one clock."""


_OWN = ("split", "mine", "clock")


def checked_stages(stages: object) -> list[Stage]:
    """Return a rank's stages, sorted by index.

    Raises UsageError for objects that are no stages, and for stages of different pipelines.
    """
    given: list[Any] = list(stages) if isinstance(stages, Sequence) else [stages]
    if not given:
        raise UsageError("a schedule needs at least one stage")
    for each in given:
        if not is_stage(each):
            raise UsageError(
                "a stage must be a torch.distributed.pipelining.PipelineStage, "
                f"not a {type(each).__name__}"
            )
        if each.num_stages != given[0].num_stages:
            raise UsageError(
                f"stage {each.stage_index} is one of {each.num_stages} stages, "
                f"stage {given[0].stage_index} one of {given[0].num_stages}"
            )
        if each.group is not given[0].group:
            raise UsageError(
                f"stages {given[0].stage_index} and {each.stage_index} have different groups"
            )
        if each.device != given[0].device:
            raise UsageError(
                f"stage {given[0].stage_index} is on {given[0].device}, "
                f"stage {each.stage_index} on {each.device}"
            )
        for above in sources_of(each):
            if above != each.stage_index - 1:
                raise UsageError(
                    f"stage {each.stage_index} takes what stage {above} computes: "
                    "a stage can send to the next one only"
                )
    return sorted(given, key=lambda stage: stage.stage_index)


def agree(
    parameters: RankParameters, group: dist.ProcessGroup | None
) -> tuple[tuple[int, ...], list[str], bool]:
    """Check that all ranks gave a schedule the same parameters, and find the rank of each stage.

    Returns the rank of each stage, the name of each rank's monotonic clock, and whether all ranks
    leave open if B and W are apart. Blocks until every rank of the group has made the call. Raises
    MismatchError if the parameters differ, and UsageError if no rank or more than one rank has a
    stage.
    """
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, asdict(parameters), group=group)
    first = gathered[0]
    for rank, other in enumerate(gathered):
        for field in fields(RankParameters):
            name = field.name
            if name not in _OWN and other[name] != first[name]:
                raise MismatchError(
                    f"rank {rank} has {name} {_brief(other[name])}, rank 0 {_brief(first[name])}",
                    rank=dist.get_rank(group),
                )
    owners: dict[int, int] = {}
    for rank, other in enumerate(gathered):
        for stage in other["mine"]:
            if stage in owners:
                raise UsageError(f"stage {stage} is on rank {owners[stage]} and on rank {rank}")
            owners[stage] = rank
    for stage in range(parameters.num_stages):
        if stage not in owners:
            raise UsageError(
                f"the pipeline has {parameters.num_stages} stages, but no rank has stage {stage}"
            )
    placement = tuple(owners[stage] for stage in range(parameters.num_stages))
    leave_open = all(other["split"] is None for other in gathered)
    return placement, [other["clock"] for other in gathered], leave_open


def clock_name() -> str:
    """Return the name of this process's monotonic clock, which is the machine's boot id."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
