"""The reader of a run from Chakra execution traces, a file NAME.RANK.et for each rank.

Traces that slackline has written give each computation. Other traces give the times of their
all_reduces; the time between them counts as computation, and all files are one step.
"""

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from slackline.errors import UsageError
from slackline.plan.collective import PLANS, Collective
from slackline.predict._calibrate import calibrate
from slackline.predict._chakra import ONE_WAY, PLAN, POLICY
from slackline.predict._chakra_schema import ALL_REDUCE, COMM_COLL_NODE, read_messages
from slackline.predict._model import covered_ns
from slackline.predict._run import Computation, Group, Link, Run, Step
from slackline.predict._spans import Reduction, Trace, run_of_traces
from slackline.sim import Policy

__all__ = ["load_chakra"]

_NS_PER_US = 1000
_FILE = re.compile(r"(.*)\.(\d+)\.et")
_NAME = re.compile(r"step (\d+) (before|forward|backward|after|all_reduce)(?: (\d+))?")


def load_chakra(paths: Sequence[Path]) -> Run:
    """Read and calibrate the run of these files, one for each rank.

    Raises UsageError that names the file, and the node or the message, for a missing rank, for
    dependencies in a cycle, for a node that is no computation and no all_reduce, and for clocks
    that disagree.
    """
    files = _by_rank(paths)
    name = str(files[0].parent)
    ranks = [_read(path) for path in files]
    policies = {rank.policy for rank in ranks}
    if policies == {None}:
        return run_of_traces(name, [_trace(rank) for rank in ranks])
    if len(policies) > 1:
        raise UsageError(f"{name}: its files have the policies {sorted(map(str, policies))}")
    return _own(name, ranks, ranks[0].policy)


@dataclass(frozen=True)
class _File:
    """The nodes of one rank's file."""

    path: Path
    policy: str | None
    """The policy of a run that slackline has written; None for other traces."""
    one_way_ns: int
    nodes: tuple[Any, ...]


def _by_rank(paths: Sequence[Path]) -> list[Path]:
    """Return the files in the order of their ranks; raise UsageError where a rank is missing."""
    found: dict[int, Path] = {}
    prefixes = set()
    for path in paths:
        match = _FILE.fullmatch(path.name)
        if match is None:
            raise UsageError(f"a trace must be called NAME.RANK.et, not {path.name!r}")
        prefixes.add(match[1])
        found[int(match[2])] = path
    if len(prefixes) > 1:
        raise UsageError(f"the traces of one run are needed, not of {', '.join(sorted(prefixes))}")
    for rank in range(max(found) + 1):
        if rank not in found:
            raise UsageError(
                f"{next(iter(found.values())).parent} has no trace of rank {rank}, "
                f"{next(iter(prefixes))}.{rank}.et"
            )
    return [found[rank] for rank in range(len(found))]


def _read(path: Path) -> _File:
    head, *nodes = read_messages(path)
    policy = _attribute(head, POLICY)
    if policy is not None and policy not in get_args(Policy):
        known = ", ".join(get_args(Policy))
        raise UsageError(f"{path}: {POLICY} must be one of {known}, not {policy!r}")
    _check_order(path, nodes)
    one_way_ns = _attribute(head, ONE_WAY)
    if policy is not None and not (isinstance(one_way_ns, int) and one_way_ns >= 0):
        raise UsageError(f"{path}: {ONE_WAY} must be at least 0, not {one_way_ns!r}")
    return _File(path, policy, one_way_ns or 0, tuple(nodes))


def _check_order(path: Path, nodes: Sequence[Any]) -> None:
    """Raise UsageError for two nodes of one number, a missing node, and a cycle."""
    waits: dict[int, set[int]] = {}
    for node in nodes:
        if node.id in waits:
            raise UsageError(f"{path}: two nodes have the number {node.id}")
        waits[node.id] = {*node.data_deps, *node.ctrl_deps}
    after: dict[int, list[int]] = {}
    for number, needed in waits.items():
        for each in needed:
            if each not in waits:
                raise UsageError(f"{path}: node {number} depends on node {each}, which is missing")
            after.setdefault(each, []).append(number)
    left = {number: len(needed) for number, needed in waits.items()}
    free = deque(number for number, count in left.items() if not count)
    done = 0
    while free:
        done += 1
        for number in after.get(free.popleft(), ()):
            left[number] -= 1
            if not left[number]:
                free.append(number)
    if done < len(waits):
        stuck = [number for number, count in left.items() if count]
        raise UsageError(f"{path}: the dependencies of node {stuck[0]} form a cycle")


def _attribute(node: Any, name: str) -> Any:
    """Return the value of a node's attribute; None without the attribute."""
    for each in node.attr:
        if each.name == name:
            which = each.WhichOneof("value")
            return None if which is None else getattr(each, which)
    return None


def _reduction(path: Path, node: Any) -> Reduction:
    kind, size = _attribute(node, "comm_type"), _attribute(node, "comm_size")
    if kind != ALL_REDUCE:
        raise UsageError(
            f"{path}: node {node.id} ({node.name}) is a collective of the type {kind!r}, and only "
            f"all_reduces ({ALL_REDUCE}) can be simulated"
        )
    if not isinstance(size, int) or size < 1:
        raise UsageError(
            f"{path}: comm_size of node {node.id} ({node.name}) must be a positive integer, not "
            f"{size!r}"
        )
    if not node.duration_micros:
        raise UsageError(
            f"{path}: node {node.id} ({node.name}) has no duration: the network of the run cannot "
            "be calibrated"
        )
    start_ns = node.start_time_micros * _NS_PER_US
    return Reduction(start_ns, start_ns + node.duration_micros * _NS_PER_US, size)


def _trace(file: _File) -> Trace:
    """Return the all_reduces of a file as one step."""
    reductions = sorted(
        _reduction(file.path, node) for node in file.nodes if node.type == COMM_COLL_NODE
    )
    timed = [node.start_time_micros for node in file.nodes if node.duration_micros]
    begin_ns = min(timed, default=0) * _NS_PER_US
    return Trace(name=str(file.path), begin_ns=begin_ns, steps=(tuple(reductions),))


@dataclass
class _Parts:
    """The nodes of one step in a file that slackline has written."""

    nodes: dict[tuple[str, int], Any]

    def duration_ns(self, part: str, group: int = -1) -> int:
        """Return the duration of a computation."""
        return int(self.nodes[part, group].duration_micros) * _NS_PER_US

    def end_ns(self) -> int:
        """Return the end of the step's last computation."""
        node = self.nodes["after", -1]
        return int(node.start_time_micros + node.duration_micros) * _NS_PER_US


def _own(name: str, files: Sequence[_File], policy: str | None) -> Run:
    """Return the run that slackline has written; the first step lacks its predecessor."""
    parts = [_parts_of(file) for file in files]
    first = parts[0]
    for file, each in zip(files, parts, strict=True):
        if [step.nodes.keys() for step in each] != [step.nodes.keys() for step in first]:
            raise UsageError(f"{file.path} has other steps or groups than {files[0].path}")
    numbers = sorted(group for part, group in first[0].nodes if part == "all_reduce")
    groups = tuple(_group(files[0].path, first[0].nodes["all_reduce", each]) for each in numbers)
    steps = [
        _own_step(files, [each[number] for each in parts], [each[number - 1] for each in parts])
        for number in range(1, len(first))
    ]
    run = Run(
        name=name,
        ranks=len(files),
        hosts=len(files),
        groups=groups,
        steps=tuple(steps),
        policy=cast(Policy, policy),
        link=Link(rate_bps=1, one_way_ns=files[0].one_way_ns),
    )
    return calibrate(run)


def _group(path: Path, node: Any) -> Group:
    plan = _attribute(node, PLAN)
    if (Collective.ALL_REDUCE, plan) not in PLANS:
        raise UsageError(f"{path}: {PLAN} of node {node.id} must be a plan's name, not {plan!r}")
    return Group(nbytes=_reduction(path, node).nbytes, plan=plan)


def _parts_of(file: _File) -> list[_Parts]:
    found: dict[int, _Parts] = {}
    for node in file.nodes:
        match = _NAME.fullmatch(node.name)
        if match is None:
            raise UsageError(
                f"{file.path}: node {node.id} must be called like 'step 3 backward 1', not "
                f"{node.name!r}"
            )
        group = -1 if match[3] is None else int(match[3])
        found.setdefault(int(match[1]), _Parts({})).nodes[match[2], group] = node
    if sorted(found) != list(range(len(found))) or len(found) < 2:
        raise UsageError(f"{file.path} must have at least the steps 0 and 1, not {sorted(found)}")
    for number, step in found.items():
        groups = {group for part, group in step.nodes if part == "all_reduce"}
        wanted = {("before", -1), ("after", -1)}
        for part in ("forward", "backward", "all_reduce"):
            wanted |= {(part, group) for group in range(max(1, len(groups)))}
        if missing := sorted(wanted - step.nodes.keys()):
            part, group = missing[0]
            said = part if group < 0 else f"{part} {group}"
            raise UsageError(f"{file.path}: step {number} has no node {said!r}")
    return [found[number] for number in range(len(found))]


def _own_step(files: Sequence[_File], parts: Sequence[_Parts], before: Sequence[_Parts]) -> Step:
    count = len(files)
    walls, computations, busy = [], [], []
    for file, step, last in zip(files, parts, before, strict=True):
        start_ns, end_ns = last.end_ns(), step.end_ns()
        walls.append(end_ns - start_ns)
        computations.append(_computation(step))
        spans = [
            _reduction(file.path, node)
            for each in (last, step)
            for (part, _), node in each.nodes.items()
            if part == "all_reduce"
        ]
        busy.append(
            covered_ns(
                (max(start_ns, span.start_ns), min(end_ns, span.end_ns))
                for span in spans
                if span.start_ns < end_ns and span.end_ns > start_ns
            )
        )
    exposed = [wall - each.total_ns for wall, each in zip(walls, computations, strict=True)]
    return Step(
        wall_ns=sum(walls) // count,
        exposed_ns=max(0, sum(exposed) // count),
        busy_ns=sum(busy) // count,
        ranks=tuple(computations),
    )


def _computation(step: _Parts) -> Computation:
    groups = [group for part, group in step.nodes if part == "backward"]
    return Computation(
        before_ns=step.duration_ns("before"),
        forward_ns=sum(step.duration_ns("forward", group) for group in groups),
        backward_ns=tuple(step.duration_ns("backward", group) for group in sorted(groups)),
        after_ns=step.duration_ns("after"),
    )
