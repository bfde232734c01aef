"""The model of a fault: the affected link, NIC or rank, the effects, the start and the duration."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Self

from slackline.errors import UsageError
from slackline.units import format_duration_ns, format_factor, format_percent, format_rate

__all__ = ["ACTIONS", "NOTHING", "Action", "Effects", "Fault", "LinkFault", "NicFault", "RankFault"]

Action = Literal["kill", "stop", "slow"]
ACTIONS: tuple[Action, ...] = ("kill", "stop", "slow")
"""The faults of a rank, worst first: the process dies, stands still, or runs slower."""


@dataclass(frozen=True, kw_only=True)
class Effects:
    """The effects on packets of one path in one direction. The default has no effect."""

    delay_ns: int = 0
    """The delay added to each packet."""
    jitter_ns: int = 0
    """The largest further delay, drawn uniformly for each packet; packets stay in order."""
    rate_bps: int | None = None
    """The rate of the path in bits per second; None for no limit."""
    loss: float = 0.0
    """The share of packets that do not arrive, from 0 to 1."""
    duplicate: float = 0.0
    """The share of packets that arrive twice."""
    reorder: float = 0.0
    """The share of packets that are delayed by 1 ms, or by the jitter if the jitter is longer.

    Packets that were sent later overtake these packets.
    """
    corrupt: float = 0.0
    """The share of packets that arrive with one wrong bit."""
    down: bool = False
    """Whether no packet arrives."""
    seed: int = 0
    """The seed of the random draws: with equal seeds, the same packets are affected."""

    def __post_init__(self) -> None:
        for name in ("delay_ns", "jitter_ns", "seed"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must be at least 0, not {getattr(self, name)}")
        if self.rate_bps is not None and self.rate_bps <= 0:
            raise UsageError(f"a rate must be positive, not {self.rate_bps}: use down instead")
        for name in ("loss", "duplicate", "reorder", "corrupt"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UsageError(f"{name} must be between 0 and 1, not {getattr(self, name)}")

    @property
    def bytes_per_second(self) -> int:
        """The rate in the unit of the native core: bytes per second, 0 for no limit."""
        return 0 if self.rate_bps is None else max(1, self.rate_bps // 8)

    def __or__(self, other: Self) -> Self:
        """Combine two effects on one path.

        Delays and seeds are added, the lower rate counts, and losses are independent.
        """
        rates = [rate for rate in (self.rate_bps, other.rate_bps) if rate is not None]
        return type(self)(
            delay_ns=self.delay_ns + other.delay_ns,
            jitter_ns=self.jitter_ns + other.jitter_ns,
            rate_bps=min(rates, default=None),
            loss=_either(self.loss, other.loss),
            duplicate=_either(self.duplicate, other.duplicate),
            reorder=_either(self.reorder, other.reorder),
            corrupt=_either(self.corrupt, other.corrupt),
            down=self.down or other.down,
            seed=self.seed + other.seed,
        )

    def __str__(self) -> str:
        words = [
            f"{name} {format_duration_ns(value)}"
            for name, value in (("delay", self.delay_ns), ("jitter", self.jitter_ns))
            if value
        ]
        words += [] if self.rate_bps is None else [f"rate {format_rate(self.rate_bps)}"]
        words += [
            f"{name} {format_percent(getattr(self, name))}"
            for name in ("loss", "duplicate", "reorder", "corrupt")
            if getattr(self, name)
        ]
        words += ["down"] if self.down else []
        words += [f"seed {self.seed}"] if self.seed else []
        return " ".join(words)


NOTHING = Effects()
"""The effects on a healthy path, which leave every packet unchanged."""


@dataclass(frozen=True, kw_only=True)
class _Timed:
    """The time span of a fault."""

    start_ns: int = 0
    """The fault's start, from the time zero that the executor of the plan defines."""
    length_ns: int | None = None
    """The fault's length; None means that the fault never ends."""

    def __post_init__(self) -> None:
        if self.start_ns < 0:
            raise UsageError(f"a fault cannot start at {self.start_ns} ns")
        if self.length_ns is not None and self.length_ns <= 0:
            raise UsageError(f"a fault cannot last {self.length_ns} ns")

    @property
    def end_ns(self) -> int | None:
        """The end of the fault; None for a fault that never ends."""
        return None if self.length_ns is None else self.start_ns + self.length_ns

    def active(self, now_ns: int) -> bool:
        """Return whether the fault is active at that time; at its end the fault is over."""
        return self.start_ns <= now_ns and (self.end_ns is None or now_ns < self.end_ns)

    def changes(self) -> Iterator[int]:
        """Yield the times at which the effects change, in order; the sequence may be endless."""
        yield self.start_ns
        if self.end_ns is not None:
            yield self.end_ns

    def next_change(self, now_ns: int) -> int | None:
        """Return the first time after `now_ns` at which the fault's effects change, if any."""
        return next((at_ns for at_ns in self.changes() if at_ns > now_ns), None)

    def _when(self) -> str:
        words = f" from {format_duration_ns(self.start_ns)}" if self.start_ns else ""
        return words + (f" for {format_duration_ns(self.length_ns)}" if self.length_ns else "")


@dataclass(frozen=True, kw_only=True)
class LinkFault(_Timed):
    """A fault between two hosts, on all of their NICs: `link 2-3 delay 30ms`."""

    source: int
    target: int
    both: bool = True
    """Whether both directions are affected (2-3), or only that from source to target (2>3)."""
    effects: Effects

    def __post_init__(self) -> None:
        super().__post_init__()
        _numbered("host", self.source)
        _numbered("host", self.target)
        if self.source == self.target:
            raise UsageError(f"a link joins different hosts, not {self.source} and {self.target}")
        _does_something(self.effects)

    def __str__(self) -> str:
        arrow = "-" if self.both else ">"
        return f"link {self.source}{arrow}{self.target} {self.effects}{self._when()}"


@dataclass(frozen=True, kw_only=True)
class NicFault(_Timed):
    """A fault of a NIC, which affects every link through it: `nic 2.1 down`."""

    host: int
    nic: int
    effects: Effects = NOTHING
    flap_ns: int | None = None
    """The half period of a flapping NIC: the NIC is down for this time, then up for this time, and
    so on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _numbered("host", self.host)
        _numbered("NIC", self.nic)
        if self.flap_ns is None:
            _does_something(self.effects)
        elif self.flap_ns <= 0:
            raise UsageError(f"a NIC cannot flap every {self.flap_ns} ns")
        elif self.effects.down:
            raise UsageError("a NIC that is down cannot flap")

    def effects_at(self, now_ns: int) -> Effects:
        """Return the effects on packets through the NIC, at a time at which the fault is active."""
        if self.flap_ns is None or (now_ns - self.start_ns) // self.flap_ns % 2:
            return self.effects
        return self.effects | Effects(down=True)

    def changes(self) -> Iterator[int]:
        if self.flap_ns is None:
            yield from super().changes()
            return
        flaps = itertools.count(self.start_ns, self.flap_ns)
        if self.end_ns is None:
            yield from flaps
        else:
            end_ns = self.end_ns
            yield from itertools.takewhile(lambda at_ns: at_ns < end_ns, flaps)
            yield end_ns

    def next_change(self, now_ns: int) -> int | None:
        if self.flap_ns is None or now_ns < self.start_ns:
            return super().next_change(now_ns)
        flap_ns = now_ns + self.flap_ns - (now_ns - self.start_ns) % self.flap_ns
        if self.end_ns is None or flap_ns < self.end_ns:
            return flap_ns
        return self.end_ns if now_ns < self.end_ns else None

    def __str__(self) -> str:
        words = [str(self.effects)] if self.effects != NOTHING else []
        words += [] if self.flap_ns is None else [f"flap {format_duration_ns(self.flap_ns)}"]
        return f"nic {self.host}.{self.nic} {' '.join(words)}{self._when()}"


@dataclass(frozen=True, kw_only=True)
class RankFault(_Timed):
    """A fault of a rank's process: `rank 2 stop from 5s for 1s`."""

    rank: int
    action: Action
    factor: float = 1.0
    """The factor by which the rank is slower, for the action "slow"."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _numbered("rank", self.rank)
        if self.action == "kill" and self.length_ns is not None:
            raise UsageError("a killed rank stays dead: kill takes no duration (for)")
        if self.action == "slow" and not 1.0 < self.factor <= 1000.0:
            raise UsageError(f"a rank can be 1 to 1000 times slower, not {self.factor:g} times")

    @property
    def end_ns(self) -> int | None:
        """The end of the fault; the fault "kill" ends when it starts."""
        return self.start_ns if self.action == "kill" else super().end_ns

    def active(self, now_ns: int) -> bool:
        return self.start_ns <= now_ns if self.action == "kill" else super().active(now_ns)

    def changes(self) -> Iterator[int]:
        if self.action == "kill":
            yield self.start_ns
        else:
            yield from super().changes()

    def __str__(self) -> str:
        how = f"slow {format_factor(self.factor)}" if self.action == "slow" else self.action
        return f"rank {self.rank} {how}{self._when()}"


Fault = LinkFault | NicFault | RankFault


def _either(one: float, other: float) -> float:
    """Return the probability of at least one of two independent events.

    The result is exact if one of the events cannot happen.
    """
    if not one or not other:
        return one or other
    return 1.0 - (1.0 - one) * (1.0 - other)


def _numbered(what: str, number: int) -> None:
    if number < 0:
        raise UsageError(f"the number of a {what} must be at least 0, not {number}")


def _does_something(effects: Effects) -> None:
    if effects == Effects(seed=effects.seed):
        raise UsageError("a fault needs at least one effect that is not zero")
