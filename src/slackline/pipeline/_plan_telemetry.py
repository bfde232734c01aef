"""The telemetry of one rank of a pipeline: its steps, its plans and their predicted step times."""

import time
from pathlib import Path

from slackline.backend import plain_steps
from slackline.env import Environment
from slackline.pipeline.replan import warm_up
from slackline.plan.pipeline import PipelinePlan, Scenario, replay
from slackline.records import Decision, Promise, Record, Writer, log_of

__all__ = ["PlanTelemetry"]

_PS_PER_NS = 1000


class PlanTelemetry:
    """The telemetry file and the log of one rank of a pipeline; `open` opens the file."""

    def __init__(self, rank: int) -> None:
        """Create the telemetry of a rank of the job, without a file."""
        plain_steps.leave()
        self._rank = rank
        self._writer: Writer | None = None
        self._log = log_of(Environment.read())

    def open(self, directory: Path, limit_bytes: int) -> None:
        """Write all further records to the rank's file in `directory`, up to a size in bytes."""
        self._writer = Writer(directory, self._rank, limit_bytes=limit_bytes)

    @property
    def is_read(self) -> bool:
        """Whether there is a file or a log, to which records are written."""
        return self._writer is not None or self._log is not None

    def write(self, record: Record) -> None:
        """Write a record to the file and to the log, where there are any."""
        if self._writer is not None:
            self._writer.write(record)
        if self._log is not None:
            self._log.take(record)

    def decided(self, plan: PipelinePlan, reason: str) -> None:
        """Write a record of the choice of a plan."""
        ahead = ", ".join(map(str, warm_up(plan)))
        self.write(
            Decision(
                rank=self._rank,
                time_ns=time.time_ns(),
                subject="schedule",
                choice=f"{plan}; forwards before the first backward: {ahead}",
                reason=reason,
            )
        )

    def promised(self, plan: PipelinePlan, measured: Scenario) -> None:
        """Write a record of the step time that a plan has with measured times and delays."""
        if self._writer is None:  # The replay of a long plan takes time.
            return
        makespan_ps = replay(plan, measured).makespan_ps
        self.write(
            Promise(
                rank=self._rank,
                time_ns=time.time_ns(),
                source="schedule",
                choice=str(plan),
                wall_ns=makespan_ps // _PS_PER_NS,
            )
        )
