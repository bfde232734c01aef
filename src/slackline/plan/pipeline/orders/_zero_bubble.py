"""Zero-bubble orders: W is separate from B, so the previous stage waits less; W fills idle time.

B is the backward for the input, W the backward for the weights (Qi et al., Zero Bubble Pipeline
Parallelism, 2023, sections 2, 3 and 6). The orders are made for equal stages, tF = tB = tW = t, and
links without delay. Under these conditions each order takes (3 N + S - 1) t.
"""

from collections.abc import Callable

from slackline.errors import UsageError
from slackline.plan.pipeline._instruction import Instruction, Kind
from slackline.plan.pipeline._plan import PipelinePlan, plan_of_orders, vee
from slackline.plan.pipeline._scenario import Scenario
from slackline.plan.pipeline.orders._list import KINDS, Knobs, Work, list_schedule

__all__ = ["zb_h1", "zb_h2", "zb_v", "zero_bubble"]


def zb_h1(stages: int, microbatches: int) -> PipelinePlan:
    """Return the ZB-H1 plan for S stages, in which each stage holds at most S activations.

    Stage i runs S - i forwards of warm-up as in 1F1B. The stage's backwards for the weights lag i
    microbatches behind its backwards for the input.
    """
    return _trailing("zb-h1", stages, microbatches, lambda stage: stages - stage)


def zb_h2(stages: int, microbatches: int) -> PipelinePlan:
    """Return the ZB-H2 plan for S stages, in which each stage holds at most 2 S - 1 activations.

    Stage i runs 2 (S - i) - 1 forwards of warm-up, which gives every link a slack of 2. The stage's
    backwards for the weights lag 2 i microbatches behind its backwards for the input.
    """
    return _trailing("zb-h2", stages, microbatches, lambda stage: 2 * (stages - stage) - 1)


def zero_bubble(stages: int, microbatches: int) -> PipelinePlan:
    """Return a plan with ZB-H2's warm-up, after which a ready B precedes an F, and an F a W.

    The order is computed for equal times. Memory has no limit here, so a stage runs backwards for
    the weights only when it has nothing else to do. Adaptra's paper measures delays against this
    zero-bubble order (arXiv 2504.19232).
    """
    unit = Scenario.uniform(stages, microbatches)
    warm_up = [min(2 * (stages - stage) - 1, microbatches) for stage in range(stages)]
    return greedy("zero-bubble", unit, warm_up)


def greedy(name: str, scenario: Scenario, warm_up: list[int]) -> PipelinePlan:
    """Return a plan with `warm_up` forwards first, then any ready operation within the caps.

    A backward for the input is preferred to a forward, and a forward to a backward for the weights.
    """
    knobs = Knobs.with_warm_up(warm_up)
    _, orders = list_schedule(Work.of(scenario), knobs)
    return plan_of_orders(name, [[KINDS[code] for code in order] for order in orders])


def zb_v(stages: int, microbatches: int) -> PipelinePlan:
    """Return the ZB-V plan: two stages on each rank, placed in the shape of a V.

    Rank r has stages r and S - 1 - r, so the last forward and the first backward are on rank 0. The
    plan has the memory of 1F1B and the bubble of ZB-H2.
    """
    ranks = len(set(vee(stages)))
    padded = max(2 * ranks - 1, microbatches)
    programs = []
    for rank in range(ranks):
        program = _Counting((rank, stages - 1 - rank))
        for _ in range(2 * (ranks - rank) - 1):
            program.do("F", 0)
        for _ in range(rank):
            program.do("F", 1)
            program.do("F", 0)
        for _ in range(ranks - rank):
            program.do("FBW", 1)
        while program.count("F", 1) < program.count("F", 0) or program.count("F", 0) < padded:
            if program.count("F", 0) < padded:
                program.do("F", 0)
            program.do("BW", 0)
            program.do("FBW", 1)
        for _ in range(rank):
            program.do("B", 0)
            program.do("B", 1)
        for _ in range(ranks - rank):
            program.do("BW", 0)
        for side in (1, 0):
            while program.count("W", side) < program.count("B", side):
                program.do("W", side)
        kept = (each for each in program.instructions if each.microbatch < microbatches)
        programs.append(tuple(kept))
    return PipelinePlan(
        name="zb-v", microbatches=microbatches, placement=vee(stages), programs=tuple(programs)
    )


class _Counting:
    """A rank's program under construction; each kind of each stage is in microbatch order."""

    def __init__(self, stages: tuple[int, int]) -> None:
        self.instructions: list[Instruction] = []
        self._stages = stages
        self._counts: dict[tuple[str, int], int] = {}

    def count(self, kind: str, side: int) -> int:
        return self._counts.get((kind, side), 0)

    def do(self, kinds: str, side: int) -> None:
        for kind in kinds:
            done = self.count(kind, side)
            self.instructions.append(Instruction(self._stages[side], Kind(kind), done))
            self._counts[kind, side] = done + 1


def _trailing(
    name: str, stages: int, microbatches: int, warm_up: Callable[[int], int]
) -> PipelinePlan:
    """Return a plan in which backwards for the weights (W) lag behind backwards for the input (B).

    After the warm-up, a stage repeats: one B, the W of the microbatch that is `lag` earlier, and
    one forward. The remaining W's come last. With x_i forwards of warm-up and a lag of x_0 - x_i,
    every stage holds at most x_0 activations.
    """
    if stages < 1 or microbatches < 1:
        raise UsageError(
            f"{name} needs at least one stage and one microbatch, not {stages} and {microbatches}"
        )
    orders = []
    for stage in range(stages):
        ahead = warm_up(stage)
        lag = warm_up(0) - ahead
        order = [Kind.F] * min(ahead, microbatches)
        for microbatch in range(microbatches):
            order.append(Kind.B)
            if microbatch >= lag:
                order.append(Kind.W)
            if ahead + microbatch < microbatches:
                order.append(Kind.F)
        order += [Kind.W] * min(lag, microbatches)
        orders.append(order)
    return plan_of_orders(name, orders)
