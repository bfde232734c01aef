"""What all ranks must agree on before the first step, and who has which stage."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torch import distributed as dist

from slackline.errors import MismatchError, UsageError
from slackline.pipeline._torch import Stage, is_stage, sources_of

__all__ = ["Terms", "agree", "checked_stages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """One rank's view."""

    num_stages: int
    microbatches: int
    schedule: str
    """The name, or the whole plan."""
    policy: str
    memory: str
    has_loss: bool
    full_backward: bool
    effort: float
    mine: tuple[int, ...]
    """The stages of this rank."""
    clock: str
    """Ranks that have it in common share a monotonic clock."""


_OWN = ("mine", "clock")


def checked_stages(stages: object) -> list[Stage]:
    """The stages by index; raises UsageError for what are none, or not of one pipeline."""
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


def agree(terms: Terms, group: dist.ProcessGroup | None) -> tuple[tuple[int, ...], list[str]]:
    """The rank of each stage, and each rank's clock; every rank of the group comes here.

    Raises MismatchError where the ranks differ, UsageError where a stage is missing or there twice.
    """
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, asdict(terms), group=group)
    first = gathered[0]
    for rank, other in enumerate(gathered):
        for field in fields(Terms):
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
    for stage in range(terms.num_stages):
        if stage not in owners:
            raise UsageError(
                f"the pipeline has {terms.num_stages} stages, but no rank has stage {stage}"
            )
    placement = tuple(owners[stage] for stage in range(terms.num_stages))
    return placement, [other["clock"] for other in gathered]


def clock_name() -> str:
    """What ranks that read the same monotonic clock have in common: one boot of one machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
