"""Records as lines on stderr, while the program runs: SLACKLINE_LOG=info, or rail=debug,plan=info.

    slackline rank 1 plan: mesh for all_reduce of at most 2 MiB: 105 us, as tried
    slackline rank 1 rail: rail 0 to rank 2 is lost: Connection reset by peer

A kind of record belongs to a subsystem, and has the level from which on it is shown.
"""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from slackline.env import LOG_LEVELS, Environment
from slackline.records._operations import Operation, OperationsText
from slackline.records._records import (
    Counters,
    Decision,
    GroupOpened,
    LinkReport,
    LinkVerdict,
    PipelineStep,
    RailChange,
    Setting,
    StateHash,
    StepSummary,
    Written,
)
from slackline.units import count, show_bytes, show_time

__all__ = ["RecordLog", "log_of"]


_MOST_MEMBERS = 32
"""The most members of a group that a line names."""


def log_of(environment: Environment) -> "RecordLog | None":
    """Return the log that SLACKLINE_LOG asks for; None without the variable."""
    return None if environment.log is None else RecordLog(environment.log)


class RecordLog:
    """The lines about one process's records. Any thread may call the methods."""

    def __init__(self, levels: Mapping[str, str], stream: TextIO | None = None) -> None:
        """Show the records that `levels`, a level for each subsystem, ask for; "" stands for all.

        The lines go to `stream`, or to the process's stderr.
        """
        self._levels, self._stream = levels, stream
        self._broken = False

    def shows(self, subsystem: str, level: str) -> bool:
        """Return whether lines of a subsystem and a level are shown."""
        given = self._levels.get(subsystem, self._levels.get("", ""))
        return bool(given) and LOG_LEVELS.index(level) <= LOG_LEVELS.index(given)

    def take(self, record: Written) -> None:
        """Show a record, if its subsystem and its level are asked for.

        A stream that takes no more text, such as a closed one, ends the log and not the training.
        """
        known = _KINDS.get(type(record))
        if known is None or self._broken:
            return
        subsystem, level, lines_of = known
        if not self.shows(subsystem, level):
            return
        begin = f"slackline rank {record.rank} {subsystem}"
        text = "".join(f"{begin}: {line}\n" for line in lines_of(record))
        stream = self._stream or sys.stderr
        try:
            if stream is not None:  # A process may be started without a stderr.
                stream.write(text)
                stream.flush()
        except (OSError, ValueError):  # ValueError: the program has closed it.
            self._broken = True


def _opened(record: GroupOpened) -> list[str]:
    members = ", ".join(map(str, record.members[:_MOST_MEMBERS]))
    if record.size > _MOST_MEMBERS:
        members += ", …"
    return [f"group {record.epoch} of {count(record.size, 'rank')} is open: {members}"]


def _counters(record: Counters) -> list[str]:
    counted = (f"{name} {value}" for name, value in record.values.items() if value)
    return [f"the engine has ended: {', '.join(counted)}"]


def _decision(record: Decision) -> list[str]:
    subject = "" if record.subject == "plan" else f"{record.subject} "
    return [f"{subject}{record.choice}: {record.reason}"]


def _state_hash(record: StateHash) -> list[str]:
    inexact = "" if record.exact else ", inexact"
    part = "" if record.parts == 1 else f", part {record.part} of {record.parts}"
    return [f"hash {record.hash} after step {record.step}{part}{inexact}"]


def _rail(record: RailChange) -> list[str]:
    if record.change == "leaving":
        return [record.reason]
    part = "the link" if record.rail < 0 else f"rail {record.rail}"
    return [f"{part} to rank {record.peer} is {record.change}: {record.reason}"]


def _report(record: LinkReport) -> list[str]:
    sent, received = show_bytes(record.sent_bytes), show_bytes(record.received_bytes)
    return [
        f"{record.kind} rail {record.rail} to rank {record.peer}: in "
        f"{show_time(record.interval_ns)} "
        f"{sent} sent, {received} received, "
        f"{record.resent} of {record.packets} packets again, round trip "
        f"{show_time(record.round_trip_ns)}, {show_bytes(record.unconfirmed_bytes)} on the way"
    ]


def _step(record: StepSummary) -> list[str]:
    return [
        f"step {record.step} of optimizer {record.optimizer}: {show_time(record.wall_ns)}, "
        f"exposed {show_time(record.exposed_ns)}"
    ]


def _pipeline_step(record: PipelineStep) -> list[str]:
    return [
        f"step {record.step} by the plan {record.plan}: {show_time(record.wall_ns)}, computed "
        f"{show_time(record.computing_ns)}, waited {show_time(record.waiting_ns)}"
    ]


def _operations(record: OperationsText) -> list[str]:
    lines = []
    for row in json.loads(f"[{record.rows}]"):
        each = Operation(*row)
        if each.internal:  # A trial of plans, for example, which the program did not ask for.
            continue
        with_peer = f" with rank {each.peer}" if each.peer >= 0 else ""
        by_plan = f" by {each.plan_name}" if each.plan_name else ""
        over = f" over {', '.join(each.rail_names)}" if each.rails else ""
        took = f"{show_time(each.ended_ns - each.posted_ns)}"
        waited = f", waited {show_time(each.waited_ns)}" if each.waited_ns else ""
        failed = ", FAILED" if each.failed else ""
        lines.append(
            f"{each.kind} {each.sequence} of group {each.group}{with_peer}: "
            f"{show_bytes(each.bytes)}{by_plan}{over} in {took}{waited}{failed}"
        )
    if record.lost:
        lines.append(f"{count(record.lost, 'operation')} not shown: there were too many")
    return lines


_KINDS: Mapping[type, tuple[str, str, Callable[[Any], list[str]]]] = {
    GroupOpened: ("group", "info", _opened),
    Counters: ("group", "debug", _counters),
    Setting: ("setting", "debug", lambda each: [f"{each.name} = {each.value} ({each.origin})"]),
    Decision: ("plan", "info", _decision),
    RailChange: ("rail", "info", _rail),
    LinkVerdict: ("link", "info", lambda each: [each.reason]),
    LinkReport: ("link", "debug", _report),
    StepSummary: ("step", "debug", _step),
    PipelineStep: ("step", "debug", _pipeline_step),
    StateHash: ("step", "debug", _state_hash),
    OperationsText: ("operation", "trace", _operations),
}
"""The subsystem and the level of each kind of record, and the function that makes its lines."""
