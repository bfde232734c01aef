"""The facts about a script that decide which settings may help it, from its first trial."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from slackline.cli._tune._steps import TrialSteps
from slackline.plan.pipeline import Instruction
from slackline.records import Operation, Setting

__all__ = ["Facts", "facts_of"]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The settings, operations and pipeline stages of a job, as its first trial shows them."""

    ranks: int
    settings: Mapping[str, Setting]
    """The settings that the job used, by name; without a pipeline there is none of a schedule."""
    plans: Mapping[str, int]
    """The bytes that the later all_reduces of the first rank have reduced by each plan."""
    largest_bytes: int
    """The largest buffer of an operation of the first rank."""
    wires: bool
    """Whether frames of the first rank left the rank over TCP or UDP."""
    one_stage_a_rank: bool = True
    """Whether each rank has one stage of the pipeline."""

    def is_open(self, name: str) -> bool:
        """Return whether a setting is in use without a value from the script or the user.

        A value that the library has found by its own trial does not close a setting.
        """
        return name in self.settings and self.settings[name].origin in ("default", "trial")

    def value(self, name: str, default: str = "") -> str:
        """Return the value of a setting, or `default` if the script does not use the setting."""
        return self.settings[name].value if name in self.settings else default


def facts_of(trial: TrialSteps) -> Facts:
    """Return the facts that the records of a trial show."""
    first = trial.ranks[0]
    # The operations of a group's opening, by which the engine measures plans, come first.
    operations = first.operations[len(first.operations) // 2 :]
    plans: Counter[str] = Counter()
    for each in operations:
        if each.kind == "all_reduce" and each.plan_name:
            plans[each.plan_name] += each.bytes
    stages = [
        {Instruction.parse(token).stage for token in rank.pipeline[-1].tokens}
        for rank in trial.ranks
        if rank.pipeline
    ]
    return Facts(
        ranks=len(trial.ranks),
        settings=dict(first.settings),
        plans=dict(plans),
        largest_bytes=max((each.bytes for each in operations), default=0),
        wires=any(_on_wire(each) for each in operations),
        one_stage_a_rank=all(len(each) == 1 for each in stages),
    )


def _on_wire(operation: Operation) -> bool:
    return any(name != "shm" for name in operation.rail_names)
