"""The panel of a pipeline: the instructions of one step on all ranks, and the bubbles."""

from typing import Any

from slackline.errors import UsageError
from slackline.history import Job, Rank
from slackline.plan.pipeline import Instruction
from slackline.records import PipelineStep

__all__ = ["pipeline"]

_MOST_RANKS = 32
_MOST_INSTRUCTIONS = 400
"""The most instructions of one rank, from the step's beginning on."""


def pipeline(job: Job) -> dict[str, Any]:
    """Return the latest step that all of a pipeline's ranks have reported.

    Times are milliseconds since the first rank began the step, at the Unix time `begin_s`. An
    instruction is [kind, stage, microbatch, beginning, end], a bubble [beginning, end]: a time
    between two instructions of a rank. `waiting` is the share of the step in which no instruction
    was ready. Without pipeline records `ranks` is empty.
    """
    ranks = [rank for rank in job.ranks.values() if rank.pipeline][:_MOST_RANKS]
    common = (
        set.intersection(*({each.step for each in rank.pipeline} for rank in ranks))
        if ranks
        else set()
    )
    if not common:
        return {"step": None, "ranks": []}
    number = max(common)
    steps = [(rank, _step(rank, number)) for rank in ranks]
    begins = [step.time_ns for _, step in steps]
    ends = [begin + step.wall_ns for begin, (_, step) in zip(begins, steps, strict=True)]
    first = min(begins)
    return {
        "step": number,
        "plan": steps[0][1].plan,
        "policy": steps[0][1].policy,
        "change": steps[0][1].change,
        "begin_s": first / 1e9,
        "length_ms": (max(ends) - first) / 1e6,
        "ranks": [
            _row(rank.number, step, begin - first)
            for begin, (rank, step) in zip(begins, steps, strict=True)
        ],
    }


def _step(rank: Rank, number: int) -> PipelineStep:
    return next(each for each in reversed(rank.pipeline) if each.step == number)


def _row(rank: int, step: PipelineStep, offset_ns: int) -> dict[str, Any]:
    spans = sorted(zip(step.start_ns, step.end_ns, strict=False))
    ends = [0, *(end for _, end in spans)]
    begins = [*(begin for begin, _ in spans), step.wall_ns]
    rows = list(zip(step.tokens, step.start_ns, step.end_ns, strict=False))
    return {
        "rank": rank,
        "instructions": [
            [*_named(token), (offset_ns + begin) / 1e6, (offset_ns + end) / 1e6]
            for token, begin, end in rows[:_MOST_INSTRUCTIONS]
        ],
        "bubbles": [
            [(offset_ns + end) / 1e6, (offset_ns + begin) / 1e6]
            for end, begin in zip(ends, begins, strict=True)
            if begin > end
        ],
        "waiting": step.waiting_ns / step.wall_ns if step.wall_ns else 0.0,
        "left_out": len(rows[_MOST_INSTRUCTIONS:]),
    }


def _named(token: str) -> tuple[str, int | None, int | None]:
    """Return an instruction's kind, stage and microbatch; other text is a kind of its own."""
    try:
        instruction = Instruction.parse(token)
    except UsageError:
        return token, None, None
    return str(instruction.kind), instruction.stage, instruction.microbatch
