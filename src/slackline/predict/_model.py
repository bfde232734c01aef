"""The simulation of a run under given conditions, with computation times drawn from measured steps.

    measured step   before | forward | backward 0 > post | backward 1 > post | after
    simulated       layers in the order of forward: the group that is posted last comes first

The forward pass is divided among the groups like the backward pass, since telemetry has only the
time of the whole forward pass.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from slackline.plan.collective import Collective, generate
from slackline.predict._run import Computation, Run
from slackline.predict._setting import Setting
from slackline.sim import (
    Fabric,
    Framing,
    Host,
    Layer,
    Operation,
    StepTimes,
    TrainingRun,
    engine_ahead_bytes,
    simulate_training,
)

__all__ = ["Outcome", "busy_ns", "covered_ns", "replay", "simulate", "step_times"]

_PS_PER_NS = 1000
_FRAMING = Framing(header_bytes=64, packet_bytes=1448, packet_overhead_bytes=66)
"""The frames of the engine over TCP and Ethernet."""
_PACKET_BYTES = 1514
_CORES = 2
"""One core for the computation of a rank, and one for its engine."""
_BLOCKS = 8
"""The number of simulations that a prediction consists of; each has a network drawn anew."""
_MOST_SPREAD = 2.0
"""The largest factor by which a drawn network differs from the calibrated one."""

Draw = Callable[[int, int], Computation]
"""A function (rank, step) that returns the computations of a rank in a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The simulated steps of a run; all times are those of one step."""

    step_ns: tuple[int, ...]
    """The duration of each step, sorted."""
    exposed_ns: int
    """The mean time for which a rank waited for gradients."""
    computing_ns: int
    """The mean time for which a rank computed."""
    wire_share: float
    """The mean share of the time in which the busiest host's NICs sent, from 0 to 1."""

    @property
    def p50_ns(self) -> int:
        """The median duration of a step."""
        return self.step_ns[round(0.5 * (len(self.step_ns) - 1))]

    @property
    def p95_ns(self) -> int:
        """The duration that 95 % of the steps do not exceed."""
        return self.step_ns[round(0.95 * (len(self.step_ns) - 1))]

    @property
    def exposed_share(self) -> float:
        """The share of the mean step for which a rank waited for gradients."""
        return self.exposed_ns * len(self.step_ns) / max(1, sum(self.step_ns))


def simulate(run: Run, setting: Setting, *, samples: int, seed: int) -> Outcome:
    """Simulate at least `samples` steps; equal arguments give equal results.

    Each simulated step has the computations of one measured step, drawn with `seed`, on all ranks;
    ranks that the run did not have draw a measured rank and step of their own. The rate of the
    network is drawn too, from the spread of the measured times of reductions.

    Raises LinkError, PeerError and TimeoutError where faults keep the steps from ending.
    """
    random = Random(seed)
    steps_ns: list[int] = []
    exposed = computing = wire = 0.0
    blocks = min(_BLOCKS, samples)
    each = -(-samples // blocks)
    usual = sorted(step.busy_ns for step in run.steps)[len(run.steps) // 2]
    for _ in range(blocks):
        drawn = random.choice(run.steps).busy_ns
        spread = min(_MOST_SPREAD, max(1 / _MOST_SPREAD, usual / max(1, drawn)))
        draw = _Draws(run, random.randrange(1 << 62))
        trained = replay(setting, run, draw, each + 1, max(1, round(setting.rate_bps * spread)))
        steps_ns += [round(step / _PS_PER_NS) for step in trained.step_ps]
        exposed += _mean(ps for step in trained.exposed_ps for ps in step) / _PS_PER_NS
        computing += draw.mean_ns * setting.computing
        total_s = max(trained.ended_ps) / 1e12
        capacity = setting.rate_bps * spread * setting.nics * total_s
        wire += 8 * max(trained.sent_bytes) / capacity
    return Outcome(
        step_ns=tuple(sorted(steps_ns)),
        exposed_ns=round(exposed / blocks),
        computing_ns=round(computing / blocks),
        wire_share=min(1.0, wire / blocks),
    )


class _Draws:
    """Computations drawn from the measured steps."""

    def __init__(self, run: Run, seed: int) -> None:
        self._run, self._seed = run, seed
        self._total_ns = self._count = 0

    @property
    def mean_ns(self) -> float:
        """The mean time of the computations drawn so far."""
        return self._total_ns / max(1, self._count)

    def __call__(self, rank: int, step: int) -> Computation:
        run = self._run
        measured = Random(f"{self._seed} {step}").choice(run.steps)
        if rank < run.ranks:
            found = measured.ranks[rank]
        else:
            random = Random(f"{self._seed} {step} {rank}")
            found = random.choice(random.choice(run.steps).ranks)
        self._total_ns += found.total_ns
        self._count += 1
        return found


def replay(setting: Setting, run: Run, draw: Draw, steps: int, rate_bps: int) -> TrainingRun:
    """Simulate `steps` steps with the computations that `draw` returns, at a rate of the NICs."""
    plans = {group.nbytes: group.plan for group in setting.groups}
    operations = {nbytes: _operation(setting, plan, nbytes) for nbytes, plan in plans.items()}
    helpers = max(operation.plan.helpers for operation in operations.values())
    host = _host(setting, rate_bps, urgent=run.policy == "overlap")
    fabric = Fabric(
        hosts=(host,) * (setting.hosts + helpers),
        framing=_FRAMING,
        forwards_after_bytes=_PACKET_BYTES,
    )
    placement = [rank // setting.ranks_per_host for rank in range(setting.ranks)]
    placement += range(setting.hosts, setting.hosts + helpers)
    layers = [
        Layer(forward_ps=0, backward_ps=0, gradient_bytes=group.nbytes)
        for group in reversed(setting.groups)
    ]
    return simulate_training(
        layers,
        fabric,
        operations.__getitem__,
        steps=steps,
        policy=run.policy,
        placement=placement,
        faults=setting.faults,
        times=lambda rank, step: step_times(setting, draw(rank, step)),
    )


def busy_ns(trained: TrainingRun) -> float:
    """Return the mean time of a step in which a rank had a reduction under way."""
    steps = trained.reductions_ps
    covered_ps = [
        covered_ns(span for step in steps for span in step[rank]) for rank in range(len(steps[0]))
    ]
    return _mean(covered_ps) / len(steps) / _PS_PER_NS


def covered_ns(spans: Iterable[tuple[int, int]]) -> int:
    """Return the time that is covered by one or more of the spans (start, end)."""
    covered, reached = 0, None
    for start, end in sorted(spans):
        if reached is not None:
            start = max(start, reached)
        if end > start:
            covered += end - start
        reached = end if reached is None else max(reached, end)
    return covered


def _host(setting: Setting, rate_bps: int, *, urgent: bool) -> Host:
    """Return a host; with `urgent` frames that overtake others, their wait in queues counts."""
    one_way_ps = setting.one_way_ns * _PS_PER_NS
    if setting.hosts == 1:
        return Host(
            rates_bps=(1,),
            cores=_CORES * setting.ranks_per_host,
            memory_bytes_per_second=max(1, rate_bps // 8),
            memory_latency_ps=one_way_ps,
        )
    return Host(
        rates_bps=(rate_bps,) * setting.nics,
        latency_ps=one_way_ps // 2,
        burst_bytes=setting.burst_bytes,
        ahead_bytes=engine_ahead_bytes(rate_bps) if urgent else 0,
        cores=_CORES * setting.ranks_per_host,
    )


def _operation(setting: Setting, name: str, nbytes: int) -> Operation:
    by_host = setting.ranks_per_host if name == "hierarchical" else None
    plan = generate(Collective.ALL_REDUCE, name, setting.ranks, ranks_per_host=by_host)
    itemsize = 4 if nbytes % 4 == 0 else 1
    return Operation(plan=plan, count=nbytes // itemsize, itemsize=itemsize)


def step_times(setting: Setting, computed: Computation) -> StepTimes:
    """Return the durations of a step; layer 0 is the group that is posted last."""
    backward = []
    for parts, share in zip(setting.parts, setting.shares, strict=True):
        backward.append(share * sum(computed.backward_ns[part] for part in parts))
    factor = _PS_PER_NS * setting.computing
    whole = sum(backward)
    forward = [
        computed.forward_ns * (each / whole if whole else 1 / len(backward)) for each in backward
    ]
    return StepTimes(
        before_ps=round(computed.before_ns * factor),
        forward_ps=_picoseconds(forward, factor),
        backward_ps=_picoseconds(backward, factor),
        after_ps=round(computed.after_ns * factor),
    )


def _picoseconds(times_ns: Sequence[float], factor: float) -> tuple[int, ...]:
    return tuple(round(each * factor) for each in reversed(times_ns))


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
