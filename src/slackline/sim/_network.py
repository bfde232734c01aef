"""Simulated channels: each carries messages between two stages in one direction.

    sent            leaves                 arrives
      |--- queue ---|--- size / rate ---|--- latency ---|

A channel sends one message at a time and delivers messages in order: a message never arrives before
a message that was sent earlier, even where the latency has fallen in the meantime. On a serial
network each message leaves when the previous message has arrived, as with sends that are kernels on
one GPU stream.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType
from typing import Any, Literal, Self

from slackline.errors import UsageError
from slackline.faults import NOTHING, Effects, Plan
from slackline.plan.pipeline import Scenario
from slackline.sim._delegation import Delegation

__all__ = ["SENDS", "Channel", "ChannelState", "Direction", "Network", "Turn"]

SENDS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "asynchronous": {},
        "blocking": {"serial": True, "head_of_line": True, "queue_depth": 0},
        "one-queue": {
            "serial": True,
            "head_of_line": True,
            "queue_depth": 0,
            "half_duplex": True,
        },
    }
)
"""The ways in which ranks send messages, as fields of a Network.

asynchronous: messages overlap on a link, and computations go on meanwhile.
blocking: a message occupies its direction of a link until it arrives, and the sender waits.
one-queue: blocking, and both directions of a link are one queue, as that of a communicator.
"""

Direction = Literal["forward", "backward"]

_PS_PER_S = 10**12
_PS_PER_NS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A simulated link in one direction."""

    latency_ps: int = 0
    """The time from the departure of a message's last byte to its arrival, before any change."""
    changes: tuple[tuple[int, int], ...] = ()
    """(start time, new latency) in order of time; a message has the latency at its departure."""
    jitter_ps: int = 0
    """The largest additional latency, drawn at random for each message."""
    bytes_per_second: int | None = None
    """The rate of the channel; None where size has no effect."""

    def __post_init__(self) -> None:
        for name in ("latency_ps", "jitter_ps"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must be at least 0, not {getattr(self, name)}")
        if self.bytes_per_second is not None and self.bytes_per_second < 1:
            raise UsageError(f"bytes_per_second must be positive, not {self.bytes_per_second}")
        times = [time for time, _ in self.changes]
        if times != sorted(set(times)):
            raise UsageError(f"changes must be in order of time, not at {times}")
        for time, latency in self.changes:
            if latency < 0:
                raise UsageError(f"the latency from {time} ps must be at least 0, not {latency}")

    def latency_at(self, time_ps: int) -> int:
        """Return the latency, in picoseconds, of a message that leaves at `time_ps`."""
        place = bisect_right(self.changes, time_ps, key=lambda change: change[0])
        return self.changes[place - 1][1] if place else self.latency_ps

    def sending_ps(self, size_bytes: int) -> int:
        """Return the time in picoseconds to send `size_bytes` at the link's rate, rounded up."""
        if self.bytes_per_second is None:
            return 0
        return -(-size_bytes * _PS_PER_S // self.bytes_per_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The links of a simulated pipeline."""

    forward: tuple[Channel, ...]
    """The channels of activations, one for each link."""
    backward: tuple[Channel, ...]
    """The channels of gradients, one for each link."""
    message_bytes: tuple[int, ...] = ()
    """The size of an activation, and of its gradient, on each link; empty means 0 on all links."""
    head_of_line: bool = False
    """Whether a blocked send stops its rank's computations (head-of-line blocking).

    A rank then stands still while more than `queue_depth` of its messages in one direction are
    under way; with 0 a rank waits for each of its sends.
    """
    queue_depth: int = 1
    serial: bool = False
    """Whether a message leaves only when the message before it has arrived."""
    half_duplex: bool = False
    """Whether messages of both directions of a link take turns."""
    delegation: Delegation | None = None
    """The helper processes that carry all messages, in place of the ranks' devices; `serial`,
    `half_duplex` and `head_of_line` have no effect then."""
    seed: int = 0
    """The seed of jitter: the same seed gives the same trace."""

    def __post_init__(self) -> None:
        links = len(self.forward)
        if len(self.backward) != links:
            raise UsageError(f"{links} links need {links} channels back, not {len(self.backward)}")
        if self.message_bytes and len(self.message_bytes) != links:
            raise UsageError(f"{links} links need {links} sizes, not {len(self.message_bytes)}")
        if self.queue_depth < 0:
            raise UsageError(f"queue_depth must be at least 0, not {self.queue_depth}")

    @classmethod
    def of(cls, scenario: Scenario) -> Self:
        """Build a network with the scenario's delays, which never change."""
        return cls(
            forward=tuple(Channel(latency_ps=each) for each in scenario.forward_delay_ps),
            backward=tuple(Channel(latency_ps=each) for each in scenario.backward_delay_ps),
        )

    def sending(self, sends: str) -> Self:
        """Return a copy whose messages are sent in one of the ways of `SENDS`."""
        return replace(self, **SENDS[sends])

    def changing(
        self, link: int, changes: Sequence[tuple[int, int]], direction: Direction | None = None
    ) -> Self:
        """Return a copy in which one link's latency changes over time.

        `changes` are (start time in ps, latency in ps), in order. Both directions change unless
        `direction` names one.
        """
        if not 0 <= link < len(self.forward):
            raise UsageError(f"link must be from 0 to {len(self.forward) - 1}, not {link}")

        def changed(channels: tuple[Channel, ...]) -> tuple[Channel, ...]:
            new = replace(channels[link], changes=tuple(changes))
            return (*channels[:link], new, *channels[link + 1 :])

        return replace(
            self,
            forward=self.forward if direction == "backward" else changed(self.forward),
            backward=self.backward if direction == "forward" else changed(self.backward),
        )

    def with_faults(self, faults: Plan, until_ps: int) -> Self:
        """Return a copy with the delays of a fault plan added, up to the time `until_ps`.

        Stage i stands for rank i, which has one NIC. Raises UsageError for any effect other than a
        delay, since the cost of a lost or damaged packet depends on the engine.
        """
        times = [0]
        for time_ns in faults.changes():
            if time_ns * _PS_PER_NS > until_ps:
                break
            times.append(time_ns)
        stages = len(self.forward) + 1
        effects = {time_ns: faults.links(time_ns, stages, 1) for time_ns in times}
        for found in effects.values():
            for effect in found.values():
                if effect != Effects(delay_ns=effect.delay_ns, seed=effect.seed):
                    raise UsageError(f'the simulator can add only delays, not "{effect}"')

        def delayed(channel: Channel, source: int, target: int) -> Channel:
            moments = {time_ns * _PS_PER_NS for time_ns in times}
            moments |= {time_ps for time_ps, _ in channel.changes}
            steps = []
            for time_ps in sorted(moments):
                known = max(each for each in times if each * _PS_PER_NS <= time_ps)
                extra = effects[known].get((source, target, 0), NOTHING).delay_ns * _PS_PER_NS
                steps.append((time_ps, channel.latency_at(time_ps) + extra))
            return replace(channel, changes=tuple(steps))

        return replace(
            self,
            forward=tuple(delayed(each, i, i + 1) for i, each in enumerate(self.forward)),
            backward=tuple(delayed(each, i + 1, i) for i, each in enumerate(self.backward)),
        )


@dataclass(slots=True)
class Turn:
    """The earliest departure of the next message, on a channel or on both directions of a link."""

    free_ps: int = 0


class ChannelState:
    """The messages from one rank to another while a simulation runs: one queue in order.

    Where several stages are on each rank, the messages of several channels are in one queue.
    """

    def __init__(self, random: Random, turn: Turn | None = None, *, serial: bool = False) -> None:
        """Begin with no message under way; channels that take turns have the same `turn`."""
        self.under_way = 0
        self._random = random
        self._turn = turn or Turn()
        self._serial = serial
        self._last_ps = 0

    def send(self, channel: Channel, now_ps: int, size_bytes: int) -> int:
        """Send a message now and return the time of its arrival in picoseconds."""
        left_ps = max(now_ps, self._turn.free_ps) + channel.sending_ps(size_bytes)
        jitter = self._random.randint(0, channel.jitter_ps) if channel.jitter_ps else 0
        arrival = left_ps + channel.latency_at(left_ps) + jitter
        self._last_ps = max(self._last_ps, arrival)
        self._turn.free_ps = self._last_ps if self._serial else left_ps
        self.under_way += 1
        return self._last_ps
