"""The order DualPipeV: two stages on each rank, one of each direction of a V, in turns.

Of R ranks, rank r has stage r on the way down and stage 2 R - 1 - r on the way up. In the middle of
an iteration the rank pairs a forward (F) of one stage with a backward of the other, so the messages
of each travel while the other computes. DualPipeV is the half of DualPipe that remains when the two
directions, which hold the same parameters there, are joined into a V (DeepSeek-AI, DeepSeek-V3
Technical Report, 2024, section 3.2.1, and the DualPipe repository).
"""

from slackline.plan.pipeline._instruction import Instruction, Kind
from slackline.plan.pipeline._plan import PipelinePlan, Program, vee

__all__ = ["dual_pipe_v"]

_DOWN, _UP = 0, 1


def dual_pipe_v(stages: int, microbatches: int, *, full_backward: bool = False) -> PipelinePlan:
    """Return the DualPipeV plan of an even number of stages, two on each rank.

    Backwards at the beginning of the drain and in its second half are separated into backwards for
    the input (B) and for the weights (W), and the W's fill idle time. The other backwards are one
    instruction with `full_backward`, else a B and directly the W of the same microbatch. With fewer
    microbatches than stages, the plan is that of as many microbatches as stages without the
    missing ones. Raises UsageError for an odd number of stages.
    """
    placement = vee(stages)
    ranks = stages // 2
    programs = []
    for rank in range(ranks):
        order = _Order((rank, stages - 1 - rank), full_backward)
        _fill(order, rank, ranks, max(stages, microbatches))
        kept = (each for each in order.instructions if each.microbatch < microbatches)
        programs.append(tuple(kept))
    return PipelinePlan(
        name="dualpipe-v",
        microbatches=microbatches,
        placement=placement,
        programs=tuple(programs),
    )


def _fill(order: "_Order", rank: int, ranks: int, microbatches: int) -> None:
    """Add all instructions of a rank."""
    below = ranks - rank - 1
    for _ in range(2 * below):
        order.forward(_DOWN)
    for _ in range(rank + 1):
        order.forward(_DOWN)
        order.forward(_UP)
    for _ in range(below):
        order.backward_input(_UP)
        order.weight()
        order.forward(_UP)
    for _ in range(microbatches - 2 * ranks + rank + 1):
        order.forward(_DOWN)
        order.backward(_UP)
        order.forward(_UP)
        order.backward(_DOWN)
    for _ in range(below):
        order.backward(_UP)
        order.forward(_UP)
        order.backward(_DOWN)
    # The last rank + 1 of these backwards leave their W's for the idle time that follows.
    for step in range(2 * (rank + 1)):
        side = _DOWN if step % 2 else _UP
        if step < rank + 1:
            order.backward(side)
        else:
            order.backward_input(side)
    for _ in range(below):
        order.weight()
        order.backward_input(_DOWN)
    for _ in range(rank + 1):
        order.weight()


class _Order:
    """A rank's program under construction; each kind of each stage is in microbatch order."""

    def __init__(self, stages: tuple[int, int], full_backward: bool) -> None:
        self._stages, self._full = stages, full_backward
        self._list: list[Instruction] = []
        self._forwards, self._backwards = [0, 0], [0, 0]
        self._pending: list[Instruction] = []

    @property
    def instructions(self) -> Program:
        """The program so far."""
        return tuple(self._list)

    def forward(self, side: int) -> None:
        """Add the next forward of a stage."""
        self._list.append(Instruction(self._stages[side], Kind.F, self._forwards[side]))
        self._forwards[side] += 1

    def backward(self, side: int) -> None:
        """Add the next backward of a stage, for the input and for the weights."""
        if self._full:
            self._add(side, Kind.BW)
        else:
            self._list.append(self._add(side, Kind.B))

    def backward_input(self, side: int) -> None:
        """Add the next backward for the input of a stage; its W becomes pending."""
        self._pending.append(self._add(side, Kind.B))

    def weight(self) -> None:
        """Add the earliest pending backward for the weights."""
        self._list.append(self._pending.pop(0))

    def _add(self, side: int, kind: Kind) -> Instruction:
        """Add a backward; return the W of the same microbatch."""
        stage, microbatch = self._stages[side], self._backwards[side]
        self._backwards[side] += 1
        self._list.append(Instruction(stage, kind, microbatch))
        return Instruction(stage, Kind.W, microbatch)
