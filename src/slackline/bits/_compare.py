"""The first step after which two runs with virtual ranks differ."""

from dataclasses import dataclass

from slackline.bits._evidence import Evidence
from slackline.errors import UsageError

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The steps in which two runs have equal hashes, and the first one in which they have not."""

    steps: int
    """The number of steps of which both runs have a hash."""
    last_equal: int | None
    """The latest such step before the first difference; None if there is none."""
    first_different: int | None
    """The first step with another hash; None if the runs have equal hashes."""

    @property
    def equal(self) -> bool:
        """Whether the runs have equal hashes in all steps that both have."""
        return self.first_different is None


def compare(one: Evidence, other: Evidence) -> Comparison:
    """Compare the hashes of two runs, step by step.

    Raises UsageError if they have no step in common.
    """
    both = [step for step in one.hashes if step in other.hashes]
    if not both:
        raise UsageError(
            f"no step has a hash in both runs: {one.directory} has steps {_span(one)} and "
            f"{other.directory} has {_span(other)}"
        )
    different = (step for step in both if one.hashes[step] != other.hashes[step])
    first = next(different, None)
    equal = both if first is None else both[: both.index(first)]
    return Comparison(
        steps=len(both), last_equal=equal[-1] if equal else None, first_different=first
    )


def _span(run: Evidence) -> str:
    steps = list(run.hashes)
    return f"{steps[0]} to {steps[-1]}"
