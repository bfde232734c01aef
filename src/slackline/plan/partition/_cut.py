"""A cut of a model into stages on hosts, and the scenario of the pipeline that follows from it."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise

from slackline.errors import UsageError
from slackline.plan.partition._cluster import Cluster, Link
from slackline.plan.partition._profile import Profile
from slackline.plan.pipeline import Scenario, StageMemory
from slackline.plan.pipeline.orders import trips
from slackline.units import show_bytes

__all__ = ["Costs", "Cut", "check_stages", "even_cut"]

_ANY = 1 << 62
"""A memory that is never full."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The layers and the host of each stage: stage i has layers `bounds[i]` to `bounds[i+1]` - 1.

    `hosts[i]` is the index of the host of stage i. Stages of one host are on different devices.
    """

    bounds: tuple[int, ...]
    hosts: tuple[int, ...]

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.hosts)


def even_cut(profile: Profile, cluster: Cluster, stages: int) -> Cut:
    """Return the cut with equally many layers in each stage, on devices in the cluster's order.

    The first stages have one layer more where the layers cannot be divided evenly.
    """
    check_stages(profile, cluster, stages)
    share, more = divmod(len(profile.layers), stages)
    sizes = [share + (stage < more) for stage in range(stages)]
    places = [place for place, host in enumerate(cluster.hosts) for _ in range(host.devices)]
    return Cut((0, *accumulate(sizes)), tuple(places[:stages]))


def check_stages(profile: Profile, cluster: Cluster, stages: int) -> None:
    """Raise UsageError if there are no stages, or more stages than layers or devices."""
    if stages < 1:
        raise UsageError(f"stages must be a positive integer, not {stages}")
    if stages > len(profile.layers):
        raise UsageError(
            f"{stages} stages need at least {stages} layers; there are {len(profile.layers)}"
        )
    if stages > cluster.devices:
        raise UsageError(
            f"{stages} stages need at least {stages} devices; there are {cluster.devices}"
        )


class Costs:
    """The times and the memory of any stage of a profile on any host of a cluster.

    Values from layer 0 up to each cut are kept as sums, so a stage's value is one difference.
    """

    def __init__(self, profile: Profile, cluster: Cluster) -> None:
        self.profile, self.cluster = profile, cluster
        layers = profile.layers
        self.layers = len(layers)
        speeds = [host.speed for host in cluster.hosts]
        self.forward = [_sums([each.forward_ps for each in layers], speed) for speed in speeds]
        self.backward = [
            _sums([each.backward_input_ps for each in layers], speed) for speed in speeds
        ]
        self.weight = [
            _sums([each.backward_weight_ps for each in layers], speed) for speed in speeds
        ]
        self.work = [
            [sum(parts) for parts in zip(*each, strict=True)]
            for each in zip(self.forward, self.backward, self.weight, strict=True)
        ]
        one = Fraction(1)
        self.reference = _sums([each.work_ps for each in layers], one)
        self.parameters = _sums(
            [profile.parameter_copies * each.parameter_bytes for each in layers], one
        )
        self.activations = _sums([each.activation_bytes for each in layers], one)
        self.memory = [
            _ANY if host.memory_bytes is None else host.memory_bytes for host in cluster.hosts
        ]
        self._links = cluster.links()

    def link(self, above: int, below: int) -> Link | None:
        """Return the link between two hosts; None where messages take no time."""
        return self._links[above][below]

    def output_bytes(self, place: int) -> int:
        """Return the bytes that cross a cut before layer `place`, in each direction."""
        return self.profile.layers[place - 1].output_bytes

    def delay_ps(self, above: int, below: int, place: int) -> int:
        """Return the delay of a message over the cut before layer `place`."""
        link = self._links[above][below]
        return 0 if link is None else link.delay_ps(self.output_bytes(place))

    def busy_ps(self, above: int, below: int, place: int) -> int:
        """Return the time for which a message over the cut before layer `place` uses its link."""
        link = self._links[above][below]
        return 0 if link is None else link.busy_ps(self.output_bytes(place))

    def needed_bytes(self, held: int) -> list[int]:
        """Return the sums of the memory of layers, with `held` activations of each layer."""
        return [
            state + held * activation
            for state, activation in zip(self.parameters, self.activations, strict=True)
        ]

    def furthest(self, first: int, host: int, needed: Sequence[int]) -> int:
        """Return the end of the longest stage from layer `first` that fits a device of the host.

        `needed` has the sums of `needed_bytes`.
        """
        return bisect_right(needed, needed[first] + self.memory[host]) - 1

    def fits(self, cut: Cut) -> bool:
        """Return whether each stage fits its device with at least one activation."""
        needed = self.needed_bytes(1)
        return all(
            end <= self.furthest(first, host, needed)
            for (first, end), host in zip(pairwise(cut.bounds), cut.hosts, strict=True)
        )

    def scenario(self, cut: Cut, microbatches: int) -> Scenario:
        """Return the scenario of a cut, with memory in bytes.

        The cap of a stage is the memory that its parameters leave. Raises UsageError for a stage
        that does not fit its device with one activation.
        """
        parts = list(zip(pairwise(cut.bounds), cut.hosts, strict=True))
        crossed = list(zip(pairwise(cut.hosts), cut.bounds[1:-1], strict=True))
        delays = tuple(self.delay_ps(*hosts, place) for hosts, place in crossed)

        def times(sums: list[list[int]], least: int) -> tuple[int, ...]:
            return tuple(
                max(least, sums[host][end] - sums[host][first]) for (first, end), host in parts
            )

        return Scenario(
            microbatches=microbatches,
            forward_ps=times(self.forward, 1),
            backward_input_ps=times(self.backward, 1),
            backward_weight_ps=times(self.weight, 0),
            forward_delay_ps=delays,
            backward_delay_ps=delays,
            memory=tuple(
                self._memory(stage, first, end, host)
                for stage, ((first, end), host) in enumerate(parts)
            ),
        )

    def link_bound_ps(self, cut: Cut, scenario: Scenario) -> int:
        """Return a time that the messages of an iteration need at least, whatever the order.

        A link carries the messages of one direction one after the other, and the last one has yet
        to be computed on by the stages below the link and by those above.
        """
        known = trips(scenario)
        longest = 0
        for i, (above, below) in enumerate(pairwise(cut.hosts)):
            busy = self.busy_ps(above, below, cut.bounds[i + 1])
            after = scenario.forward_ps[i + 1] + known.trip_ps[i + 1]
            after += scenario.backward_input_ps[i + 1] + known.tail_ps[i + 1]
            first = known.head_ps[i + 1] + (scenario.microbatches - 1) * busy
            longest = max(longest, first + after)
        return longest

    def _memory(self, stage: int, first: int, end: int, host: int) -> StageMemory:
        state = self.parameters[end] - self.parameters[first]
        activation = self.activations[end] - self.activations[first]
        limit = self.cluster.hosts[host].memory_bytes
        if limit is None:
            return StageMemory(activation=max(1, activation))
        if state + activation > limit:
            raise UsageError(
                f"stage {stage} (layers {first} to {end - 1}) needs "
                f"{show_bytes(state + activation)} with one activation, but a device of host "
                f"{self.cluster.hosts[host].name} has {show_bytes(limit)}"
            )
        return StageMemory(activation=max(1, activation), cap=max(1, limit - state))


def _sums(values: Sequence[int], speed: Fraction) -> list[int]:
    """Return the sums of 0, 1, ... all values, each divided by the speed and rounded."""
    return [round(each / speed) for each in accumulate(values, initial=0)]
