"""Schedules whose order does not depend on the times: GPipe, 1F1B and interleaved 1F1B.

With `full_backward`, each backward is one instruction, as autograd runs it and as in PyTorch's
schedules of these names. Without `full_backward`, a W (backward for the weights) directly follows
the B (backward for the input) of the same microbatch, and the previous stage waits for B alone.
"""

from collections.abc import Iterator

from slackline.errors import UsageError
from slackline.plan.pipeline._instruction import Instruction, Kind
from slackline.plan.pipeline._plan import PipelinePlan, Program, looped, one_each

__all__ = ["gpipe", "interleaved_1f1b", "one_f_one_b"]


def gpipe(stages: int, microbatches: int, *, full_backward: bool = False) -> PipelinePlan:
    """Return the GPipe plan: all forwards, then all backwards (Huang et al., GPipe, 2019).

    Every stage holds the activations of all microbatches at once.
    """
    programs = []
    for stage in range(stages):
        forwards = [Instruction(stage, Kind.F, each) for each in range(microbatches)]
        backwards = (_backward(stage, each, full_backward) for each in range(microbatches))
        programs.append((*forwards, *(part for each in backwards for part in each)))
    return _plan("gpipe", microbatches, one_each(stages), tuple(programs))


def one_f_one_b(stages: int, microbatches: int, *, full_backward: bool = False) -> PipelinePlan:
    """Return the 1F1B plan: S - i forwards on stage i, then alternating backwards and forwards.

    With S stages, stage i holds S - i activations. The slack of every link is 1, so the plan
    absorbs no delay. Source: PipeDream-Flush, 2021.
    """
    programs = []
    for stage in range(stages):
        warm_up = min(stages - stage, microbatches)
        program = [Instruction(stage, Kind.F, each) for each in range(warm_up)]
        for each in range(microbatches):
            program += _backward(stage, each, full_backward)
            if warm_up + each < microbatches:
                program.append(Instruction(stage, Kind.F, warm_up + each))
        programs.append(tuple(program))
    return _plan("1f1b", microbatches, one_each(stages), tuple(programs))


def interleaved_1f1b(
    stages: int, microbatches: int, *, stages_per_rank: int = 2, full_backward: bool = False
) -> PipelinePlan:
    """Return the interleaved 1F1B plan: several stages on each rank, dealt out round-robin.

    A rank runs as many microbatches of one stage as there are ranks before it changes to its next
    stage. With v stages on each of R ranks, rank r runs (v - 1) R + 2 (R - 1 - r) forwards, then
    alternating forwards and backwards. Raises UsageError where the microbatches cannot be divided
    into equal rounds.
    Source: Narayanan et al., 2021, section 2.2.
    """
    placement = looped(stages, stages_per_rank)
    ranks = stages // stages_per_rank
    rounds = max(1, microbatches // ranks)
    if microbatches % rounds:
        raise UsageError(
            f"interleaved 1F1B over {ranks} ranks needs microbatches in {rounds} equal rounds, "
            f"not {microbatches}"
        )
    per_round = microbatches // rounds
    total = stages_per_rank * microbatches
    programs = []
    for rank in range(ranks):
        forwards = list(_turns(rank, ranks, stages_per_rank, per_round, total))
        mirrored = list(_turns(rank, ranks, stages_per_rank, per_round, total))
        backwards = [(ranks * stages_per_rank - ranks + 2 * rank - s, m) for s, m in mirrored]
        warm_up = min((stages_per_rank - 1) * per_round + 2 * (ranks - 1 - rank), total)
        program = [Instruction(stage, Kind.F, m) for stage, m in forwards[:warm_up]]
        for place, (stage, microbatch) in enumerate(backwards):
            if warm_up + place < total:
                ahead, later = forwards[warm_up + place]
                program.append(Instruction(ahead, Kind.F, later))
            program += _backward(stage, microbatch, full_backward)
        programs.append(tuple(program))
    return _plan("interleaved", microbatches, placement, tuple(programs))


def _turns(
    rank: int, ranks: int, stages_per_rank: int, per_round: int, total: int
) -> Iterator[tuple[int, int]]:
    """Yield (stage, microbatch) in the order of a rank's forwards."""
    for step in range(total):
        turn, place = divmod(step, per_round)
        lap, local = divmod(turn, stages_per_rank)
        yield local * ranks + rank, lap * per_round + place


def _backward(stage: int, microbatch: int, full: bool) -> list[Instruction]:
    kinds = (Kind.BW,) if full else (Kind.B, Kind.W)
    return [Instruction(stage, kind, microbatch) for kind in kinds]


def _plan(
    name: str, microbatches: int, placement: tuple[int, ...], programs: tuple[Program, ...]
) -> PipelinePlan:
    return PipelinePlan(
        name=name, microbatches=microbatches, placement=placement, programs=programs
    )
