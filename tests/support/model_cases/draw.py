"""The case of a seed: `draw_case(seed)` gives the same model and loop in every process.

The numbers come from Python's generator of random numbers and not from Hypothesis: four processes
and long campaigns name a case by one integer, without a database of examples. The module
`model_cases.failures` makes a failed case smaller.
"""

import random
from collections.abc import Sequence

from model_cases.cases import Case, Part, Plan, Stage, Step
from model_cases.parts import PARTS

__all__ = ["draw_case", "draw_replicas"]

MOST_RANKS = 4
MOST_STAGES = 4
MOST_MICROBATCHES = 9

_BASES = ("hidden",) * 7 + ("detached", "turned", "double", "half", "complex", "tokens")
_OTHERS = ("tokens", "mask", "again", "scaled", "single", "unused", "numbers", "complex")
_GATES = ("",) * 6 + ("number", "data")
_LOSSES = ("mean",) * 4 + ("sum", "entropy", "sometimes")
_WRAPS = (
    *("frozen", "checkpoint", "reentrant", "autocast", "gated-by-data", "gated-by-number"),
    *("beside", "cut", "without-gradients"),
)
_ONE_EACH = ("auto", "ready", "slack", "adaptra", "gpipe", "1f1b", "zb-h1", "zb-h2", "zero-bubble")
_CAPPED = ("auto", "ready", "slack")
_WITHOUT_BUFFERS = ("batch-norm", "after-hook")
"""The parts whose buffers a second forward would change, as a checkpoint runs it."""
_UNSCALED = ("complex", "sparse-positions")
"""The parts whose gradients torch's GradScaler refuses."""
_REPLICATED = ("sparse-positions", "after-hook")
"""The parts that slackline.overlap.DataParallel refuses, or whose buffers it replaces."""


def draw_case(seed: int) -> Case:
    """Return the case of a seed."""
    dice = random.Random(seed)
    ranks, placement = _place(dice)
    replicas = 2 if ranks <= 2 and dice.random() < 0.2 else 1
    scaler = dice.random() < 0.1 and replicas == 1
    autocast = dice.random() < 0.1
    left_out = (_UNSCALED if scaler else ()) + (_REPLICATED if replicas > 1 else ())
    left_out += ("recurrent",) if autocast else ()
    kinds = [each for each in PARTS if each not in left_out]
    stages = tuple(_stage(dice, kinds, index, len(placement)) for index in range(len(placement)))
    return Case(
        seed=seed,
        ranks=ranks,
        placement=placement,
        stages=stages,
        steps=_steps(dice, ranks, placement, replicas),
        replicas=replicas,
        loss=dice.choice(_LOSSES),
        output=dice.choice(("tensor", "tensor", "tuple")),
        autocast=autocast,
        scaler=scaler,
        keyword=dice.random() < 0.2,
    )


def draw_replicas(seed: int) -> Case:
    """Return the case of a seed whose model is whole and trained by two to four replicas."""
    dice = random.Random(f"replicas {seed}")
    count = dice.choice((1, 1, 2, 3))
    autocast = dice.random() < 0.1
    left_out = (*_REPLICATED, *(("recurrent",) if autocast else ()))
    kinds = [each for each in PARTS if each not in left_out]
    steps = []
    for turn in range(dice.choice((1, 2, 3, 4))):
        microbatches = dice.choice((1, 1, 2, 3))
        steps.append(
            Step(
                rows=tuple(dice.randint(1, 3) for _ in range(microbatches)),
                actions=tuple(_actions(dice, MOST_RANKS)) if turn else (),
                plan=Plan(schedule="", microbatches=microbatches),
            )
        )
    return Case(
        seed=seed,
        ranks=1,
        placement=(0,) * count,
        stages=tuple(_stage(dice, kinds, index, count) for index in range(count)),
        steps=tuple(steps),
        replicas=dice.choice((2, 2, 3, 4)),
        wrapped=True,
        # Every rank calls backward equally often, so every loss needs one.
        loss=dice.choice([each for each in _LOSSES if each != "sometimes"]),
        output=dice.choice(("tensor", "tensor", "tuple")),
        autocast=autocast,
        keyword=dice.random() < 0.2,
    )


def _place(dice: random.Random) -> tuple[int, tuple[int, ...]]:
    """Draw the rank of each stage; ranks have one stage each, several dealt out, a V, or any."""
    stages = dice.choice((1, 2, 2, 3, 3, 4, 4))
    form = dice.choice(("one", "one", "one", "dealt", "vee", "any"))
    if form == "dealt" and stages in (2, 4):
        ranks = stages // 2
        return ranks, tuple(index % ranks for index in range(stages))
    if form == "vee" and stages in (2, 4):
        return stages // 2, tuple(min(index, stages - 1 - index) for index in range(stages))
    if form == "any" and stages > 1:
        placement = [dice.randrange(stages) for _ in range(stages)]
        used = sorted(set(placement))
        return len(used), tuple(used.index(each) for each in placement)
    return stages, tuple(range(stages))


def _stage(dice: random.Random, kinds: Sequence[str], index: int, count: int) -> Stage:
    sends: tuple[str, ...] = ("hidden",)
    if index < count - 1:
        base = dice.choice(_BASES)
        others = dice.sample(_OTHERS, k=dice.choice((0, 0, 0, 1, 1, 2)))
        sends = (base, *(each for each in others if each != base))
    return Stage(
        parts=tuple(_part(dice, kinds) for _ in range(dice.choice((0, 1, 1, 2, 2, 3)))),
        sends=sends,
        frozen=dice.random() < 0.1,
        gate=dice.choice(_GATES),
        ignores=dice.random() < (0.08 if index == count - 1 else 0.02),
    )


def _part(dice: random.Random, kinds: Sequence[str]) -> Part:
    kind = dice.choice(kinds)
    wraps = dice.sample(_WRAPS, k=dice.choice((0, 0, 0, 0, 1, 1, 2)))
    if kind in _WITHOUT_BUFFERS:
        wraps = [each for each in wraps if each not in ("checkpoint", "reentrant")]
    if "reentrant" in wraps:
        # torch's older checkpoint needs a way from its output to its input. Without one it raises
        # an error, or has zeros for what no gradient reaches.
        wraps = [each for each in wraps if each != "cut"]
    if kind == "recurrent":  # torch has no LSTM of bfloat16 for CPUs of every kind
        wraps = [each for each in wraps if each != "autocast"]
    return Part(kind=kind, wraps=tuple(wraps))


def _steps(
    dice: random.Random, ranks: int, placement: tuple[int, ...], replicas: int
) -> tuple[Step, ...]:
    plan = _plan(dice, ranks, placement)
    steps: list[Step] = []
    for turn in range(dice.choice((1, 2, 2, 3))):
        actions: list[str] = []
        new = plan if not turn else None
        if turn:
            actions = _actions(dice, replicas)
            if dice.random() < 0.25:
                new = plan = _plan(dice, ranks, placement)
        elif dice.random() < 0.15:
            actions = ["unfreeze" if replicas == 1 and dice.random() < 0.1 else "zero"]
        whole = dice.random() < 0.6
        steps.append(
            Step(
                rows=_rows(dice, plan.microbatches, whole),
                whole=whole,
                actions=tuple(actions),
                plan=new,
            )
        )
    return tuple(steps)


def _actions(dice: random.Random, replicas: int) -> list[str]:
    actions = [dice.choice(("update", "update", "update", "zero", "zero-keep", "keep"))]
    if replicas == 1:
        actions.append(
            dice.choice((*("keep",) * 4, "assign", "adapt", "unfreeze", "freeze", "swap"))
        )
    actions.append(dice.choice((*("keep",) * 4, "eval", "eval-in-training")))
    return [each for each in actions if each != "keep"]


def _plan(dice: random.Random, ranks: int, placement: tuple[int, ...]) -> Plan:
    microbatches = dice.choice((1, 2, 3, 3, 4, 4, 5, 6, 7, 8, MOST_MICROBATCHES))
    name = dice.choice(_schedules(ranks, placement))
    if name == "interleaved" and microbatches % max(1, microbatches // ranks):
        microbatches = 4 if ranks != 3 else 3
    policies: tuple[str | None, ...] = (None, "fixed", "ready", "auto", "adaptra")
    full = name in ("gpipe", "1f1b", "interleaved", "dualpipe-v") and dice.random() < 0.3
    return Plan(
        schedule=name,
        microbatches=microbatches,
        policy=dice.choice(policies),
        memory=dice.randint(1, microbatches) if name in _CAPPED and dice.random() < 0.4 else None,
        split=dice.choice((None, None, False) if full else (None, None, None, True, False)),
        full=full,
        delegation=dice.choice((None, None, "always", "never")),
        scale=dice.random() < 0.8,
    )


def _schedules(ranks: int, placement: tuple[int, ...]) -> list[str]:
    """Return the schedules that have a plan for this placement."""
    stages = len(placement)
    found = ["auto", "ready"]
    if placement == tuple(range(stages)):
        found += _ONE_EACH
    if stages % ranks == 0 and placement == tuple(index % ranks for index in range(stages)):
        found += ["interleaved"] * 3
    if stages == 2 * ranks and placement == tuple(
        min(index, stages - 1 - index) for index in range(stages)
    ):
        found += ["zb-v", "dualpipe-v"] * 2
    return found


def _rows(dice: random.Random, microbatches: int, whole: bool) -> tuple[int, ...]:
    """Draw the rows of each microbatch; a batch is cut as torch's `tensor_split` cuts it."""
    if not whole:
        return tuple(dice.randint(1, 3) for _ in range(microbatches))
    count = dice.randint(microbatches, 2 * microbatches)
    each, rest = divmod(count, microbatches)
    return tuple(each + (place < rest) for place in range(microbatches))
