"""The schema of telemetry: one frozen dataclass for each kind of record.

Times are integer nanoseconds. A `time_ns` is Unix time. The times of operations, links and clock
offsets are read from CLOCK_MONOTONIC on the rank's host; `FileHeader` states both clocks at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slackline.records._choices import Decision, Promise, Setting
from slackline.records._devices import DeviceReport
from slackline.records._hashes import Conditions, HashedTensors, StateHash, TensorHashes
from slackline.records._operations import Operations, OperationsText

__all__ = [
    "SCHEMA_VERSION",
    "ClockOffset",
    "Conditions",
    "Counters",
    "Decision",
    "DeviceReport",
    "FileHeader",
    "Gap",
    "GroupOpened",
    "HashedTensors",
    "LinkReport",
    "LinkVerdict",
    "Operations",
    "PipelineStep",
    "Promise",
    "RailChange",
    "Record",
    "RunSummary",
    "Setting",
    "StateHash",
    "StepSummary",
    "TensorHashes",
    "Written",
]

SCHEMA_VERSION = 2
"""The version of the schema. A change that an older reader would misread raises the version."""


@dataclass(frozen=True, kw_only=True)
class FileHeader:
    """The first record of each process that writes to a file."""

    version: int
    """The version of the schema of the records that follow."""
    rank: int
    """The rank in the job."""
    time_ns: int
    """Unix time of the process's host, read together with `monotonic_ns`."""
    monotonic_ns: int
    """CLOCK_MONOTONIC of the process's host."""
    host: str
    """The host's name."""
    clock: str
    """The name of the host's monotonic clock, the same for all processes that share that clock."""
    process: int
    """The number of the process (pid)."""
    processes: str = ""
    """The name of the pid namespace, the same for all processes that number processes alike; empty
    if it is not known."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A note that records are missing from the file at this place."""

    rank: int
    """The rank in the job."""
    time_ns: int
    """Unix time at which the note was written."""
    lost: int
    """The number of records that were left out."""
    reason: str
    """The latest reason, such as "No space left on device"."""


@dataclass(frozen=True, kw_only=True)
class ClockOffset:
    """An estimate of the difference between two hosts' monotonic clocks, from a link's probes."""

    rank: int
    """The rank that sent the probe."""
    peer: int
    """The rank that answered."""
    at_ns: int
    """The time of the probe by the monotonic clock of `rank`: the middle of its round trip."""
    offset_ns: int
    """The peer's monotonic clock minus the monotonic clock of `rank`."""
    error_ns: int
    """The largest error of the offset: half of the probe's round trip."""


@dataclass(frozen=True, kw_only=True)
class LinkReport:
    """The state of one rail (a path of a link) in both directions, as the rank sees it."""

    rank: int
    """The rank that reports."""
    peer: int
    """The rank at the other end."""
    rail: int
    """The index of the rail in its link."""
    kind: str
    """The kind of the rail: "tcp" or "udp"."""
    at_ns: int
    """The end of the interval by the monotonic clock."""
    interval_ns: int
    """The time since the previous report of the rail."""
    sent_bytes: int
    """Bytes sent in the interval; divided by `interval_ns` they give the rate."""
    received_bytes: int
    """Bytes received in the interval."""
    packets: int
    """Packets sent in the interval: datagrams, or TCP segments with data."""
    resent: int
    """Packets sent again in the interval, because they were lost or late."""
    round_trip_ns: int
    """The smoothed round trip; 0 while unknown."""
    queued_bytes: int
    """Bytes that are queued in the engine at the end of the interval."""
    unconfirmed_bytes: int
    """Bytes that are queued or in flight at the end of the interval."""
    state: str
    """The state of the rail: "up" or "suspect"."""
    outward: str
    """The condition of the direction to the peer and its cause, as a sentence."""
    inward: str
    """The condition of the direction from the peer and its cause, as a sentence."""
    confirmed_bytes: int = 0
    """Bytes that the peer's end acknowledged in the interval; divided by `busy_ns` they give the
    rate that the rail carries."""
    busy_ns: int = 0
    """Time of the interval in which anything was queued or in flight."""
    least_round_trip_ns: int = 0
    """The shortest round trip of a probe in the interval; 0 without one."""
    negotiated_bps: int = 0
    """The rate that the rail's network device has negotiated, in bits per second; 0 if unknown."""
    within_host: bool = False
    """Whether both ends have addresses of one host: the rate then depends on its cores."""


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
    """Time from the previous call of `step` to this call.

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
    forward_ns: int = 0
    """Time in the wrapped module's forward, waits for late parameters included.

    Only the first optimizer has this time and `backward_ns`; for the others both are 0.
    """
    backward_ns: int = 0
    """Time from the end of each forward to the next forward or to the call of `step`."""
    plain: bool = False
    """Whether the step is known as a call of an optimizer alone, in a script without
    `slackline.overlap`. Then `wall_ns`, `exposed_ns`, `reduced_bytes` and the times on a core are
    the only figures. The exposed time is that of waits that the engine saw, or the time for which
    the thread was on no core and waited for none, at most as long as the step's operations took."""
    detailed: bool = True
    """Whether the fields of groups and hidden time are filled. A callback receives details of every
    step; a file has details of as many steps as 0.25 % of the time allows."""
    groups: tuple[int, ...] = ()
    """The number of the first parameter of each group of gradients, in the order of the posts."""
    group_bytes: tuple[int, ...] = ()
    """The bytes of each group's reduction."""
    group_posted_ns: tuple[int, ...] = ()
    """The time at which each reduction was posted, from the beginning of the step."""
    group_exposed_ns: tuple[int, ...] = ()
    """Time for which the training thread waited for each group until the call of `step`."""
    group_late_ns: tuple[int, ...] = ()
    """Time for which the training thread waited for each group after that call, in the next
    forward."""
    optimizer_ns: int = 0
    """Time in the optimizer's own code, for all parameters, also in the next forward."""
    run_ns: int | None = None
    """Time for which the training thread ran on a core, from the previous call of `step` to this
    call. Only the first optimizer has this time and `run_delay_ns`; both are None where they are
    not known, for example outside Linux."""
    run_delay_ns: int | None = None
    """Time for which the training thread could have run and waited for a core, in the same span."""
    hidden_ns: int | None = None
    """Time in which at least one reduction of this step ran and the training thread did not wait
    for communication; None if the end of a reduction is not known. This field and the fields below
    are filled in detailed records if a file or a callback receives the steps."""
    group_ended_ns: tuple[int, ...] = ()
    """The end of each reduction, from the beginning of the step; 0 if the end is not known."""
    group_forward_hidden_ns: tuple[int, ...] = ()
    """For each group, the part of the reduction's time in forwards in which the training thread did
    not wait for communication. A field for a phase is empty if all its values are 0."""
    group_backward_hidden_ns: tuple[int, ...] = ()
    """As above, from the end of a forward to the next forward or the call of `step`."""
    group_step_hidden_ns: tuple[int, ...] = ()
    """As above, from the call of `step` to the next forward."""
    group_forward_exposed_ns: tuple[int, ...] = ()
    """Time for which the training thread waited for each group in forwards."""
    group_backward_exposed_ns: tuple[int, ...] = ()
    """As above, from the end of a forward to the next forward or the call of `step`."""
    group_step_exposed_ns: tuple[int, ...] = ()
    """As above, from the call of `step` to the next forward."""

    def scalars(self) -> dict[str, float]:
        """Return the figures of the step by name, as loggers of training take them.

        Names that end in `_ms` have milliseconds and names that end in `_bytes` bytes;
        `exposed_share` is the part of the step that waited for communication, from 0 to 1.
        `hidden_ms` is missing if the hidden time is not known.
        """
        times = ("wall", "forward", "backward", "optimizer", "exposed")
        return {
            **{f"{name}_ms": getattr(self, f"{name}_ns") / 1e6 for name in times},
            **({} if self.hidden_ns is None else {"hidden_ms": self.hidden_ns / 1e6}),
            "exposed_share": self.exposed_ns / self.wall_ns if self.wall_ns else 0.0,
            "reduced_bytes": float(self.reduced_bytes),
        }


@dataclass(frozen=True, kw_only=True)
class GroupOpened:
    """The opening of a group on an engine, written when its links are made."""

    rank: int
    """The process's rank in the job."""
    time_ns: int
    """Unix time at which the links were made."""
    size: int
    """The number of ranks in the group."""
    epoch: int = 0
    """The number of the group, as in `Operation.group`."""
    members: tuple[int, ...] = ()
    """The rank in the job of each rank of the group."""


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
    """The kinds of rails (network paths) that carried frames; empty if the engine reports none."""
    hidden_ns: int = 0
    """Time in which reductions ran and the training thread did not wait for communication, in the
    steps whose hidden time is known."""
    detailed_wall_ns: int = 0
    """The time of the steps whose hidden time is known."""
    optimizer_ns: int = 0
    """Time in the optimizers' own code."""

    @property
    def steps_per_second(self) -> float:
        """The number of steps per second; 0 for a run without steps."""
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
    """The rank that reports. All ranks in this record are ranks in the job."""
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
    """The receiving rank; equal to `source` if the record is about a rank and not a link."""
    rail: int = 0
    """The index of the rail (one path of the link)."""
    over_ns: int = 0
    """The excess of the latency over its baseline; 0 without an excess."""
    reason: str
    """The reason as a sentence, which logs and web pages show unchanged."""


@dataclass(frozen=True, kw_only=True)
class RailChange:
    """A change of the state of a rail, or of a whole link, which the engine has reported."""

    rank: int
    """The rank that reports."""
    time_ns: int
    """Unix time of the change."""
    peer: int
    """The rank at the other end; -1 if it is not known."""
    rail: int
    """The index of the rail; -1 for the link as a whole."""
    change: str
    """The new state: "suspect" (not used, and probed), "lost", "up", "closed" (the peer has left in
    good order) or "down" (the link is given up), and "left" or "abandoned" between a worker and its
    aggregator; "leaving", with the rank itself as peer, before the rank closes its engine."""
    reason: str
    """The reason as the engine gives it."""


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
    run_ns: int | None = None
    """Time of the step for which the computing thread ran on a core; None if it is not known."""
    run_delay_ns: int | None = None
    """Time of the step for which that thread could have run and waited for a core; None if it is
    not known."""
    plan: str
    """The name of the plan."""
    policy: str
    """How strictly the rank keeps to the plan: "fixed", "ready", "adaptra" or "auto"."""
    change: str = ""
    """The reason for a change of the plan since the previous step; empty without a change."""
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


Record = (
    FileHeader
    | Gap
    | ClockOffset
    | LinkReport
    | Decision
    | Setting
    | Operations
    | StepSummary
    | GroupOpened
    | Counters
    | RunSummary
    | LinkVerdict
    | PipelineStep
    | Promise
    | RailChange
    | StateHash
    | Conditions
    | HashedTensors
    | TensorHashes
    | DeviceReport
)
"""A record as readers get it."""

Written = Record | OperationsText
"""A record as a rank writes it."""
