"""A pipeline plan: what each rank computes, in order, as data."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from slackline.errors import UsageError
from slackline.plan.pipeline._instruction import Instruction, Kind

__all__ = ["PipelinePlan", "Program", "looped", "one_each", "plan_of_orders", "vee"]

Program = tuple[Instruction, ...]
"""What one rank computes, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """The programs of all ranks; whether they can run to the end is for `validate` to say."""

    name: str
    microbatches: int
    placement: tuple[int, ...]
    """The rank of each stage."""
    programs: tuple[Program, ...]
    """One for each rank."""

    def __post_init__(self) -> None:
        if self.microbatches < 1:
            raise UsageError(f"microbatches must be a positive integer, not {self.microbatches}")
        if not self.placement:
            raise UsageError("stages must be a positive integer, not 0")
        used = set(self.placement)
        if used != set(range(len(self.programs))):
            raise UsageError(
                f"{len(self.programs)} programs need stages on ranks 0 to "
                f"{len(self.programs) - 1}, not on {', '.join(map(str, sorted(used)))}"
            )

    @property
    def stages(self) -> int:
        """How many parts the model has."""
        return len(self.placement)

    @property
    def ranks(self) -> int:
        """How many ranks share the stages."""
        return len(self.programs)

    def __str__(self) -> str:
        ranks = "" if self.ranks == self.stages else f" on {self.ranks} ranks"
        return f"{self.name}, {self.stages} stages{ranks}, {self.microbatches} microbatches"

    def cells(self) -> Iterator[tuple[int, int, Instruction]]:
        """Every (rank, index, instruction), rank by rank."""
        for rank, program in enumerate(self.programs):
            for index, instruction in enumerate(program):
                yield rank, index, instruction

    def orders(self) -> list[list[str]]:
        """For each rank its tokens: "F0" where it has one stage, "4F0" where it has several."""
        if self.ranks == self.stages:
            return [[each.in_stage for each in program] for program in self.programs]
        return [[str(each) for each in program] for program in self.programs]


def one_each(stages: int) -> tuple[int, ...]:
    """Stage i on rank i."""
    return tuple(range(stages))


def looped(stages: int, stages_per_rank: int) -> tuple[int, ...]:
    """Round and round: of 8 stages, two a rank, rank 1 has stages 1 and 5."""
    return tuple(stage % _ranks(stages, stages_per_rank) for stage in range(stages))


def vee(stages: int) -> tuple[int, ...]:
    """Down and up again: of 8 stages rank 1 has stages 1 and 6, and rank 0 the first and last."""
    _ranks(stages, 2)
    return tuple(min(stage, stages - 1 - stage) for stage in range(stages))


def plan_of_orders(name: str, orders: Sequence[Iterable[Kind]]) -> PipelinePlan:
    """One stage a rank, from the kinds alone: each kind takes its microbatches 0, 1, 2, ..."""
    programs = []
    for stage, order in enumerate(orders):
        done = dict.fromkeys(Kind, 0)
        program = []
        for kind in order:
            program.append(Instruction(stage, kind, done[kind]))
            done[kind] += 1
        programs.append(tuple(program))
    return PipelinePlan(
        name=name,
        microbatches=sum(each.kind is Kind.F for each in programs[0]),
        placement=one_each(len(programs)),
        programs=tuple(programs),
    )


def _ranks(stages: int, stages_per_rank: int) -> int:
    if stages_per_rank < 1 or stages % stages_per_rank:
        raise UsageError(f"{stages} stages cannot be shared out {stages_per_rank} a rank")
    return stages // stages_per_rank
