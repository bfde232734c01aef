"""A measured run, as data: its ranks, its reductions, and the computations between them."""

from dataclasses import dataclass, field

from slackline.errors import UsageError
from slackline.faults import Plan
from slackline.predict._job import Job
from slackline.sim import Policy

__all__ = ["Computation", "Group", "Link", "Run", "Step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The gradients that one all_reduce adds."""

    nbytes: int
    """The size of the gradients."""
    plan: str
    """The name of the all_reduce's plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """The times for which one rank computed in one step, without its waits, in nanoseconds."""

    before_ns: int
    """The time before the forward pass, for example to load data."""
    forward_ns: int
    """The time of the forward pass."""
    backward_ns: tuple[int, ...]
    """The time of the backward pass before the post of each group, in the order of the posts."""
    after_ns: int
    """The time from the last post to the end of the step."""

    @property
    def total_ns(self) -> int:
        """The time for which the rank computed."""
        return self.before_ns + self.forward_ns + sum(self.backward_ns) + self.after_ns

    def scaled(self, factor: float) -> "Computation":
        """Return computations that take `factor` times as long."""
        return Computation(
            before_ns=round(self.before_ns * factor),
            forward_ns=round(self.forward_ns * factor),
            backward_ns=tuple(round(each * factor) for each in self.backward_ns),
            after_ns=round(self.after_ns * factor),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A measured step of all ranks."""

    wall_ns: int
    """The duration of the step, averaged over the ranks."""
    exposed_ns: int
    """The time for which a rank waited for gradients, averaged over the ranks."""
    busy_ns: int
    """The time in which at least one reduction was under way, averaged over the ranks."""
    ranks: tuple[Computation, ...]
    """The computations of each rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The network as the run's data met it, averaged over all pairs of hosts."""

    rate_bps: int
    """The rate at which a NIC carries data, or memory does where all ranks share one host."""
    one_way_ns: int
    """The time of a message without payload from one rank to another, software included."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of data-parallel training whose steps were measured."""

    name: str
    """The file or directory that the run was read from, for messages."""
    ranks: int
    """The number of ranks."""
    hosts: int
    """The number of hosts, with equally many ranks on each."""
    nics: int = 1
    """The number of NICs of each host that carried data."""
    groups: tuple[Group, ...]
    """The reductions of a step, in the order of their posts."""
    steps: tuple[Step, ...]
    """The measured steps."""
    policy: Policy = "overlap"
    """The computations that wait for gradients."""
    link: Link
    """The calibrated network."""
    faults: Plan = field(default_factory=Plan)
    """The faults that the network and the ranks had all the time."""
    nominal_bps: int | None = None
    """The rate of a NIC by its configuration; None if it is not known."""
    burst_bytes: int = 0
    """The size of the token bucket by which the kernel's switch of a lab limits the rate of a NIC.

    The size is 0 for every other network.
    """
    notes: tuple[str, ...] = ()
    """Phrases on facts that the source of the run lacks; they join the warnings of predictions."""
    job: Job | None = None
    """The command line of the run; None if it is not known."""

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise UsageError(f"{self.name}: a run must have at least 2 ranks, not {self.ranks}")
        if self.ranks % self.hosts:
            raise UsageError(
                f"{self.name}: every host must have equally many ranks: {self.ranks} ranks are on "
                f"{self.hosts} hosts"
            )
        if not self.steps:
            raise UsageError(f"{self.name} has no complete step")
        for step in self.steps:
            for rank in step.ranks:
                assert len(rank.backward_ns) == len(self.groups)
            assert len(step.ranks) == self.ranks

    @property
    def wall_ns(self) -> tuple[int, ...]:
        """The measured duration of each step."""
        return tuple(step.wall_ns for step in self.steps)
