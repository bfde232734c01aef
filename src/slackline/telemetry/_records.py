"""The schema: one frozen dataclass for each kind of record. Times are integer nanoseconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Counters", "LinkVerdict", "PipelineStep", "Record", "RunSummary", "StepSummary"]


@dataclass(frozen=True, kw_only=True)
class StepSummary:
    """One optimizer step of one rank, written once the last parameter has taken its step."""

    rank: int
    """The rank that took the step."""
    step: int
    """The number of the step, from 0."""
    optimizer: int = 0
    """Which of the rank's optimizers, in the order they were given."""
    time_ns: int
    """Unix time when the user's call of `step` came."""
    wall_ns: int
    """From the previous call of `step` to this one; the first step counts from the wrapping."""
    exposed_ns: int
    """Time that the training thread stood still for this step's communication."""
    reduced_bytes: int
    """Bytes of gradients that this rank gave to reductions."""
    parameters: int
    """Parameters that were reduced."""
    waited: int
    """Parameters that the training thread had to stand still for."""


@dataclass(frozen=True, kw_only=True)
class Counters:
    """What an engine had counted at one moment; the counters only ever grow."""

    rank: int
    """The rank whose engine it is."""
    time_ns: int
    """Unix time of the reading."""
    values: Mapping[str, int] = field(default_factory=dict)
    """The counters by name."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """All steps of one rank in one record."""

    rank: int
    """The rank it tells about."""
    steps: int
    """How many steps were taken."""
    wall_ns: int
    """Their time, the pauses between them included."""
    exposed_ns: int
    """The part of it in which the training thread stood still for communication."""
    reduced_bytes: int
    """Bytes of gradients that this rank gave to reductions."""
    rails: tuple[str, ...] = ()
    """The kinds of rails that carried frames, by name; empty where the engine does not tell."""

    @property
    def steps_per_second(self) -> float:
        """0 for a run without steps."""
        return self.steps * 1e9 / self.wall_ns if self.wall_ns else 0.0

    @property
    def communication_share(self) -> float:
        """The part of a step that communication cost, 0 to 1."""
        return self.exposed_ns / self.wall_ns if self.wall_ns else 0.0


@dataclass(frozen=True, kw_only=True)
class LinkVerdict:
    """News about a link, or a rank: written when it is found, by each rank that sees it.

    `at_ns` and `since_ns` count from the moment when the group was open on the rank that tells, so
    that those of different hosts can be compared.
    """

    rank: int
    """The rank that tells."""
    time_ns: int
    """Unix time when it was found."""
    at_ns: int
    """When it was found."""
    since_ns: int
    """When it began."""
    condition: str
    """"slow", "losing", "silent", "cut", "late", or "back" when all is as usual again."""
    source: int
    """The rank that sends on the direction in question."""
    target: int
    """The rank that receives; the same as `source` where a rank is meant."""
    rail: int = 0
    """Which of the link's rails."""
    over_ns: int = 0
    """By how much the latency exceeds its usual; 0 where it does not."""
    reason: str
    """The sentence, as logs and pages show it."""


@dataclass(frozen=True, kw_only=True)
class PipelineStep:
    """One step of one rank of a pipeline: what it computed when, and what came when.

    Times within the step count from its beginning on this rank.
    """

    rank: int
    """In the pipeline's group."""
    step: int
    """The number of the step, from 0."""
    time_ns: int
    """Unix time when it began."""
    wall_ns: int
    """How long it took."""
    computing_ns: int
    """Time in which the rank computed."""
    waiting_ns: int
    """Time in which nothing was ready."""
    plan: str
    """The name of the plan."""
    policy: str
    """How strictly it was kept."""
    change: str = ""
    """Why the plan is another one than in the step before; empty where it is not."""
    tokens: tuple[str, ...] = ()
    """The instructions in the order in which they were computed: "2F0"."""
    start_ns: tuple[int, ...] = ()
    """When each began."""
    end_ns: tuple[int, ...] = ()
    """When each ended."""
    senders: tuple[str, ...] = ()
    """What computed each message that came from another rank."""
    arrived_ns: tuple[int, ...] = ()
    """When each came."""
    delays_ns: tuple[int, ...] = ()
    """How long each was under way, between the clocks of the two hosts."""


Record = StepSummary | Counters | RunSummary | LinkVerdict | PipelineStep
