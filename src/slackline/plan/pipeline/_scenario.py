"""A scenario: the time of each stage, the delay of each link and the memory of a pipeline.

Times are integers of picoseconds. An activation occupies memory from the start of its F (forward).
The end of its B (backward for the input) frees a part, and the end of its W (backward for the
weights) frees the rest:

    memory of one microbatch     F............B-----W
                                 activation   activation - freed_at_backward
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Self

from slackline.errors import UsageError

__all__ = ["PS_PER_MS", "Scenario", "StageMemory"]

PS_PER_MS = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """The memory of one stage's activations: integers, in bytes or in any other unit."""

    activation: int = 1
    """The memory of one microbatch's activation, from the start of its forward."""
    freed_at_backward: int = 0
    """The part of an activation that the end of the backward for the input frees.

    The end of the backward for the weights frees the rest of the activation.
    """
    cap: int | None = None
    """The limit for all activations together; None where there is no limit."""

    def __post_init__(self) -> None:
        if self.activation < 1:
            raise UsageError(f"activation must be positive, not {self.activation}")
        if not 0 <= self.freed_at_backward <= self.activation:
            raise UsageError(
                f"freed_at_backward must be between 0 and the activation's {self.activation}, "
                f"not {self.freed_at_backward}"
            )

    @classmethod
    def of_microbatches(cls, cap: Fraction | int | None, freed: Fraction | int = 0) -> Self:
        """Build a stage's memory from a cap in activations and the share of one that B frees."""
        share, limit = Fraction(freed), None if cap is None else Fraction(cap)
        if not 0 <= share <= 1:
            raise UsageError(f"freed_at_backward must be between 0 and 1, not {float(share):g}")
        unit = math.lcm(share.denominator, 1 if limit is None else limit.denominator)
        return cls(
            activation=unit,
            freed_at_backward=int(share * unit),
            cap=None if limit is None else int(limit * unit),
        )

    def activations(self, amount: int) -> Fraction:
        """Convert an amount of memory to a number of activations."""
        return Fraction(amount, self.activation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The times, delays and memory of a pipeline; link i is between stages i and i + 1."""

    microbatches: int
    forward_ps: tuple[int, ...]
    """The time of a forward on each stage (tF)."""
    backward_input_ps: tuple[int, ...]
    """The time of a backward for the input on each stage (tB)."""
    backward_weight_ps: tuple[int, ...]
    """The time of a backward for the weights on each stage (tW)."""
    forward_delay_ps: tuple[int, ...]
    """The delay of an activation over each link, from the end of the forward to the activation's
    use."""
    backward_delay_ps: tuple[int, ...]
    """The delay of a gradient over each link, from the end of the backward to the gradient's
    use."""
    memory: tuple[StageMemory, ...]
    """The memory of each stage."""

    def __post_init__(self) -> None:
        if self.microbatches < 1:
            raise UsageError(f"microbatches must be a positive integer, not {self.microbatches}")
        if not self.forward_ps:
            raise UsageError("stages must be a positive integer, not 0")
        stages = len(self.forward_ps)
        for name in ("forward_ps", "backward_input_ps", "backward_weight_ps", "memory"):
            if len(getattr(self, name)) != stages:
                raise UsageError(
                    f"{name} must have one value for each of the {stages} stages, "
                    f"not {len(getattr(self, name))}"
                )
        for name in ("forward_delay_ps", "backward_delay_ps"):
            if len(getattr(self, name)) != stages - 1:
                raise UsageError(
                    f"{name} must have one value for each of the {stages - 1} links, "
                    f"not {len(getattr(self, name))}"
                )
        for name, lowest in (
            ("forward_ps", 1),
            ("backward_input_ps", 1),
            ("backward_weight_ps", 0),
            ("forward_delay_ps", 0),
            ("backward_delay_ps", 0),
        ):
            for place, value in enumerate(getattr(self, name)):
                if value < lowest:
                    raise UsageError(f"{name}[{place}] must be at least {lowest}, not {value}")
        for stage, memory in enumerate(self.memory):
            if memory.cap is not None and memory.cap < memory.activation:
                cap = float(memory.activations(memory.cap))
                raise UsageError(f"stage {stage}, F0: needs 1 activation, but the cap is {cap:g}")

    @classmethod
    def uniform(
        cls,
        stages: int,
        microbatches: int,
        times_ps: tuple[int, int, int] = (1, 1, 1),
        *,
        cap: Fraction | int | None = None,
        freed: Fraction | int = 0,
    ) -> Self:
        """Build a scenario of equal stages and links without delay.

        `times_ps` are the times of a forward, a backward for the input and a backward for the
        weights.
        """
        if stages < 1:
            raise UsageError(f"stages must be a positive integer, not {stages}")
        forward, backward, weight = times_ps
        return cls(
            microbatches=microbatches,
            forward_ps=(forward,) * stages,
            backward_input_ps=(backward,) * stages,
            backward_weight_ps=(weight,) * stages,
            forward_delay_ps=(0,) * (stages - 1),
            backward_delay_ps=(0,) * (stages - 1),
            memory=(StageMemory.of_microbatches(cap, freed),) * stages,
        )

    @property
    def stages(self) -> int:
        """The number of stages, the parts of the model."""
        return len(self.forward_ps)

    def delayed(self, link: int, forward_ps: int, backward_ps: int | None = None) -> Self:
        """Return a copy with another delay on one link.

        The delay holds in both directions unless `backward_ps` is given.
        """
        back = forward_ps if backward_ps is None else backward_ps
        return replace(
            self,
            forward_delay_ps=_with(self.forward_delay_ps, link, forward_ps),
            backward_delay_ps=_with(self.backward_delay_ps, link, back),
        )

    def placed(self, placement: Sequence[int]) -> Self:
        """Return a copy without delays between stages of the same rank.

        `placement` has the rank of each stage.
        """
        near = [above == below for above, below in itertools.pairwise(placement)]

        def without(delays_ps: Sequence[int]) -> tuple[int, ...]:
            return tuple(0 if same else each for same, each in zip(near, delays_ps, strict=True))

        return replace(
            self,
            forward_delay_ps=without(self.forward_delay_ps),
            backward_delay_ps=without(self.backward_delay_ps),
        )

    def capped(self, caps: Sequence[Fraction | int | None]) -> Self:
        """Return a copy with another cap for each stage, counted in activations of the stage."""
        if len(caps) != self.stages:
            raise UsageError(f"{self.stages} stages need {self.stages} caps, not {len(caps)}")
        memory = []
        for each, cap in zip(self.memory, caps, strict=True):
            limit = None if cap is None else Fraction(cap)
            scale = 1 if limit is None else (limit * each.activation).denominator
            memory.append(
                StageMemory(
                    activation=each.activation * scale,
                    freed_at_backward=each.freed_at_backward * scale,
                    cap=None if limit is None else int(limit * each.activation * scale),
                )
            )
        return replace(self, memory=tuple(memory))


def _with(values: tuple[int, ...], place: int, value: int) -> tuple[int, ...]:
    if not 0 <= place < len(values):
        last = len(values) - 1
        raise UsageError(f"link must be from 0 to {last}, not {place}")
    return (*values[:place], value, *values[place + 1 :])
