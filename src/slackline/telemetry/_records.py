"""The schema of telemetry: one frozen dataclass for each kind of record.

Times are integer nanoseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "Counters",
    "GroupOpened",
    "LinkVerdict",
    "PipelineStep",
    "Record",
    "RunSummary",
    "StepSummary",
]


@dataclass(frozen=True, kw_only=True)
class StepSummary:
    """A summary of one optimizer step of one rank, written after the last parameter's step."""

    rank: int
    """The rank in the job that took the step."""
    step: int
    """The number of the step, from 0."""
    optimizer: int = 0
    """The index of the optimizer among the rank's optimizers, in the order they were given."""
    time_ns: int
    """Unix time of the user's call of `step`."""
    wall_ns: int
    """Time from the previous call of `step` to this one.

    The first step counts from the moment when the optimizer was wrapped.
    """
    exposed_ns: int
    """Time that the training thread waited for this step's communication."""
    reduced_bytes: int
    """Bytes of gradients that this rank gave to reductions."""
    parameters: int
    """The number of parameters that were reduced."""
    waited: int
    """The number of parameters that the training thread had to wait for."""


@dataclass(frozen=True, kw_only=True)
class GroupOpened:
    """The opening of a process's first group, written when its links are made."""

    rank: int
    """The process's rank in the job."""
    time_ns: int
    """Unix time at which the links were made."""
    size: int
    """The number of ranks in the group."""


@dataclass(frozen=True, kw_only=True)
class Counters:
    """The counters of an engine, written when the engine has ended."""

    rank: int
    """The rank of the engine's process in the job."""
    time_ns: int
    """Unix time of the reading."""
    values: Mapping[str, int] = field(default_factory=dict)
    """The counters by name."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A summary of all steps of one rank."""

    rank: int
    """The rank that the record describes."""
    steps: int
    """The number of steps taken."""
    wall_ns: int
    """The time of the steps, including the pauses between them."""
    exposed_ns: int
    """The part of `wall_ns` in which the training thread waited for communication."""
    reduced_bytes: int
    """Bytes of gradients that this rank gave to reductions."""
    rails: tuple[str, ...] = ()
    """The kinds of rails (network paths) that carried frames; empty where the engine gives none."""

    @property
    def steps_per_second(self) -> float:
        """The rate of steps; 0 for a run without steps."""
        return self.steps * 1e9 / self.wall_ns if self.wall_ns else 0.0

    @property
    def communication_share(self) -> float:
        """The exposed part of a step's time, from 0 to 1."""
        return self.exposed_ns / self.wall_ns if self.wall_ns else 0.0


@dataclass(frozen=True, kw_only=True)
class LinkVerdict:
    """A change in the condition of a link or a rank, written by each rank that detects it.

    `at_ns` and `since_ns` count from the moment when the group was open on the reporting rank, so
    that times of different hosts can be compared.
    """

    rank: int
    """The rank that reports; all ranks of the record are those in the job."""
    time_ns: int
    """Unix time of the detection."""
    at_ns: int
    """The time of the detection, from the opening of the group."""
    since_ns: int
    """The time when the condition began, from the opening of the group."""
    condition: str
    """The condition: "slow", "losing", "silent", "cut", "late", or "back" after recovery."""
    source: int
    """The sending rank of the affected direction of the link."""
    target: int
    """The receiving rank; the same as `source` where the record is about a rank."""
    rail: int = 0
    """The index of the rail (one path of the link)."""
    over_ns: int = 0
    """The latency above its baseline; 0 where the latency is not above it."""
    reason: str
    """The reason as a sentence, which logs and web pages show unchanged."""


@dataclass(frozen=True, kw_only=True)
class PipelineStep:
    """A record of one step of one rank of a pipeline: its computations and arrivals, with times.

    Times within the step count from its beginning on this rank.
    """

    rank: int
    """The rank in the job."""
    step: int
    """The number of the step, from 0."""
    time_ns: int
    """Unix time of the step's beginning."""
    wall_ns: int
    """The duration of the step."""
    computing_ns: int
    """Time in which the rank computed."""
    waiting_ns: int
    """Time in which no instruction was ready."""
    plan: str
    """The name of the plan."""
    policy: str
    """How strictly the rank keeps to the plan: "fixed", "ready", "adaptra" or "auto"."""
    change: str = ""
    """The reason for a change of the plan since the step before; empty without a change."""
    tokens: tuple[str, ...] = ()
    """The instructions in the order in which they were computed: "2F0"."""
    start_ns: tuple[int, ...] = ()
    """The start of each instruction."""
    end_ns: tuple[int, ...] = ()
    """The end of each instruction."""
    senders: tuple[str, ...] = ()
    """The instructions that produced the messages from other ranks, as tokens."""
    arrived_ns: tuple[int, ...] = ()
    """The arrival of each message."""
    delays_ns: tuple[int, ...] = ()
    """The time from each message's computation to its arrival, between the two hosts' clocks."""


Record = StepSummary | GroupOpened | Counters | RunSummary | LinkVerdict | PipelineStep
