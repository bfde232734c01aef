"""A pipeline plan: the computations of each rank in order, as data."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from slackline.errors import UsageError
from slackline.plan.pipeline._instruction import Instruction, Kind
from slackline.units import count

__all__ = ["PipelinePlan", "Program", "looped", "one_each", "plan_of_orders", "vee"]

Program = tuple[Instruction, ...]
"""The computations of one rank, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """The programs of all ranks of a pipeline; `validate` checks that they can run to the end."""

    name: str
    microbatches: int
    placement: tuple[int, ...]
    """The rank that each stage is on."""
    programs: tuple[Program, ...]
    """One program for each rank."""

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
        """The number of stages, the parts of the model."""
        return len(self.placement)

    @property
    def ranks(self) -> int:
        """The number of ranks that share the stages."""
        return len(self.programs)

    def __str__(self) -> str:
        ranks = "" if self.ranks == self.stages else f" on {count(self.ranks, 'rank')}"
        batches = count(self.microbatches, "microbatch", "microbatches")
        return f"{self.name}, {count(self.stages, 'stage')}{ranks}, {batches}"

    def cells(self) -> Iterator[tuple[int, int, Instruction]]:
        """Yield every (rank, index, instruction), rank by rank."""
        for rank, program in enumerate(self.programs):
            for index, instruction in enumerate(program):
                yield rank, index, instruction

    def orders(self) -> list[list[str]]:
        """Return the text of each rank's instructions: "4F0", or "F0" with one stage a rank."""
        if self.ranks == self.stages:
            return [[each.in_stage for each in program] for program in self.programs]
        return [[str(each) for each in program] for program in self.programs]


def one_each(stages: int) -> tuple[int, ...]:
    """Return the placement that puts stage i on rank i."""
    return tuple(range(stages))


def looped(stages: int, stages_per_rank: int) -> tuple[int, ...]:
    """Return the placement that deals stages out round-robin.

    With two stages on each rank, rank 1 has stages 1 and 5 of 8.
    """
    return tuple(stage % _ranks(stages, stages_per_rank) for stage in range(stages))


def vee(stages: int) -> tuple[int, ...]:
    """Return the placement of stages in the shape of a V: down the ranks and up again.

    Of 8 stages, rank 1 has stages 1 and 6, and rank 0 has the first and the last.
    """
    _ranks(stages, 2)
    return tuple(min(stage, stages - 1 - stage) for stage in range(stages))


def plan_of_orders(name: str, orders: Sequence[Iterable[Kind]]) -> PipelinePlan:
    """Build a plan with one stage on each rank from the order of instruction kinds on each stage.

    The n-th instruction of each kind on a stage is for microbatch n, counted from 0.
    """
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
        raise UsageError(f"{stages} stages cannot be divided into {stages_per_rank} for each rank")
    return stages // stages_per_rank
