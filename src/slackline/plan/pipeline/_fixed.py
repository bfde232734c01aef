"""The orders that are the same whatever the times: GPipe, 1F1B and interleaved 1F1B.

With `full_backward` each backward is one piece, as autograd runs it and PyTorch's schedules of
these names do; without, W follows its B at once and the stage above waits for B alone.
"""

from collections.abc import Iterator

from slackline.errors import UsageError
from slackline.plan.pipeline._instruction import Instruction, Kind
from slackline.plan.pipeline._plan import PipelinePlan, Program, looped, one_each

__all__ = ["gpipe", "interleaved_1f1b", "one_f_one_b"]


def gpipe(stages: int, microbatches: int, *, full_backward: bool = False) -> PipelinePlan:
    """All forwards, then all backwards (Huang et al., GPipe, 2019): holds every activation."""
    programs = []
    for stage in range(stages):
        forwards = [Instruction(stage, Kind.F, each) for each in range(microbatches)]
        backwards = (_backward(stage, each, full_backward) for each in range(microbatches))
        programs.append((*forwards, *(part for each in backwards for part in each)))
    return _plan("gpipe", microbatches, one_each(stages), tuple(programs))


def one_f_one_b(stages: int, microbatches: int, *, full_backward: bool = False) -> PipelinePlan:
    """S - i forwards on stage i, then backward and forward in turns (PipeDream-Flush, 2021).

    The slack of every link is 1: it absorbs no delay. Stage i holds S - i activations.
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
    """1F1B over several stages a rank, placed round and round (Narayanan et al., 2021, 2.2).

    A rank does as many microbatches of a stage as there are ranks before it goes on to its next
    stage; rank r runs (v - 1) R + 2 (R - 1 - r) forwards, then forward and backward in turns.
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
    """(stage, microbatch) in the order of a rank's forwards."""
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
