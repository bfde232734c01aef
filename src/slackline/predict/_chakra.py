"""The writer of a run as Chakra execution traces: PREFIX.0.et, PREFIX.1.et, a file for each rank.

    before > forward of layer 0 > forward of layer 1 > backward > backward > after > next step
             ^ waits for its group  ^                  |          |
               of the step before                      all_reduce all_reduce

Data dependencies lead from each computation to the next one, from a backward pass to the all_reduce
of its group, and from an all_reduce to the computation that waits for it. Times are whole
microseconds, as the schema demands.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slackline.errors import UsageError
from slackline.predict._chakra_schema import (
    ALL_REDUCE,
    COMM_COLL_NODE,
    COMP_NODE,
    VERSION,
    message,
    write_message,
)
from slackline.predict._model import replay, step_times
from slackline.predict._run import Run
from slackline.predict._setting import setting_of
from slackline.sim import TrainingRun

__all__ = ["ONE_WAY", "PLAN", "POLICY", "export_chakra"]

POLICY = "slackline.policy"
"""The attribute of the first message that has the run's policy."""
ONE_WAY = "slackline.one_way_ns"
"""The attribute of the first message that has the latency of the run's network."""
PLAN = "slackline.plan"
"""The attribute of an all_reduce that has the name of its plan."""
_PS_PER_US = 10**6


def export_chakra(run: Run, prefix: Path) -> list[Path]:
    """Write the measured steps of a run as `prefix`.RANK.et; return the paths of the files.

    Computations last as long as they were measured. The times at which reductions begin and end are
    those of the simulation with the calibrated network. Raises UsageError for a file that cannot be
    written.
    """
    steps = run.steps
    trained = replay(
        setting_of(run),
        run,
        lambda rank, step: steps[step].ranks[rank],
        len(steps),
        run.link.rate_bps,
    )
    paths = []
    for rank in range(run.ranks):
        path = prefix.with_name(f"{prefix.name}.{rank}.et")
        try:
            with path.open("wb") as file:
                attributes = [
                    message("AttributeProto", name=POLICY, string_val=run.policy),
                    message("AttributeProto", name=ONE_WAY, int64_val=run.link.one_way_ns),
                ]
                write_message(file, message("GlobalMetadata", version=VERSION, attr=attributes))
                for node in _Writer(run, trained, rank).nodes():
                    write_message(file, node)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from None
        paths.append(path)
    return paths


@dataclass
class _Writer:
    """The nodes of one rank, in the order of its computations."""

    run: Run
    trained: TrainingRun
    rank: int
    made: int = 0
    """The number of nodes so far, and the identifier of the latest."""
    now_ps: int = 0
    """The end of the latest computation."""
    latest: int = 0
    """The identifier of the latest computation; 0 before the first one."""
    reductions: dict[int, tuple[int, int]] = field(default_factory=dict)
    """For each group of the previous step, the node of its all_reduce and the end of that."""

    def nodes(self) -> Iterator[Any]:
        """Yield the nodes of all steps."""
        setting = setting_of(self.run)
        groups = len(self.run.groups)
        for step, measured in enumerate(self.run.steps):
            times = step_times(setting, measured.ranks[self.rank])
            yield self._compute(step, "before", -1, times.before_ps)
            for layer, forward_ps in enumerate(times.forward_ps):
                yield self._compute(step, "forward", groups - 1 - layer, forward_ps)
            reduced = {}
            for layer in reversed(range(groups)):
                group = groups - 1 - layer
                yield self._compute(step, "backward", group, times.backward_ps[layer])
                start_ps, end_ps = self.trained.reductions_ps[step][self.rank][layer]
                yield self._reduce(step, group, start_ps, end_ps)
                reduced[group] = self.made, end_ps
            self.reductions = reduced
            yield self._compute(step, "after", -1, times.after_ps)

    def _compute(self, step: int, part: str, group: int, duration_ps: int) -> Any:
        waits = []
        if part == "forward":  # With other policies, each computation waits for all groups.
            every = self.run.policy != "overlap"
            waits = [self.reductions[key] for key in self.reductions if every or key == group]
        start_ps = max(self.now_ps, *(end_ps for _, end_ps in waits), 0)
        self.now_ps = start_ps + duration_ps
        before = [self.latest] if self.latest else []
        node = self._node(COMP_NODE, step, part, group, start_ps, self.now_ps)
        node.data_deps.extend([*before, *(number for number, _ in waits)])
        self.latest = self.made
        return node

    def _reduce(self, step: int, group: int, start_ps: int, end_ps: int) -> Any:
        node = self._node(COMM_COLL_NODE, step, "all_reduce", group, start_ps, end_ps)
        node.data_deps.append(self.latest)
        priority = len(self.run.groups) - 1 - group if self.run.policy == "overlap" else 0
        size, plan = self.run.groups[group].nbytes, self.run.groups[group].plan
        node.attr.extend(
            (
                message("AttributeProto", name="comm_type", int64_val=ALL_REDUCE),
                message("AttributeProto", name="comm_size", int64_val=size),
                message("AttributeProto", name="comm_priority", int32_val=priority),
                message("AttributeProto", name=PLAN, string_val=plan),
            )
        )
        return node

    def _node(self, kind: int, step: int, part: str, group: int, start_ps: int, end_ps: int) -> Any:
        self.made += 1
        start_us, end_us = start_ps // _PS_PER_US, end_ps // _PS_PER_US
        name = f"step {step} {part}" + (f" {group}" if group >= 0 else "")
        return message(
            "Node",
            id=self.made,
            name=name,
            type=kind,
            start_time_micros=start_us,
            duration_micros=end_us - start_us,
            attr=[message("AttributeProto", name="is_cpu_op", bool_val=False)],
        )
