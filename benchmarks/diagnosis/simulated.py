"""Simulated jobs: their steps, probes and counters as the records that real ranks write.

Steps come from `slackline.sim`, probes and counters from `slackline.testing.simulated_network`.
Each rank's own `Tracker` turns the latter into verdicts, as in an engine. A reader sees a record
0.3 s after it was written, and evaluates the diagnosis every 0.25 s.
"""

from __future__ import annotations

import heapq
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from scenarios import JITTER_NS, RANKS, Scenario

from slackline import records
from slackline.causes import Cause, Diagnosis, Kind
from slackline.detect import RailSample, Tracker
from slackline.faults import Effects, Plan
from slackline.history import Job
from slackline.plan.collective import Collective, generate
from slackline.records import (
    SCHEMA_VERSION,
    Counters,
    FileHeader,
    GroupOpened,
    LinkReport,
    LinkVerdict,
    Operations,
    Record,
    StepSummary,
)
from slackline.sim import Fabric, Host, Layer, Operation, StepTimes, simulate_training
from slackline.testing.simulated_network import (
    MS,
    SAMPLE_EVERY,
    US,
    Direction,
    Network,
    S,
    exponential,
    healthy,
)

UNIX_NS = 1_800_000_000 * S
LASTS_NS = 14 * S
"""The time for which a fault lasts and is observed."""
READ_AFTER_NS = 300 * MS
RATE_BPS = 1_000_000_000
CHUNK_STEPS = 1000
LAYERS = tuple(
    Layer(forward_ps=10 * 10**9, backward_ps=17 * 10**9, gradient_bytes=1 << 20) for _ in range(6)
)
_PS = 1000
"""Picoseconds in a nanosecond."""

Timed = tuple[int, int, Record]
"""The true time at which a record is written, a number that keeps the order, and the record."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The names that a diagnosis gave in a simulated job."""

    named: tuple[tuple[int, Cause], ...]
    """The causes, each with the time at which it was named, from the start of the job."""
    start_ns: int
    """The start of the fault."""

    def first(self) -> tuple[str, str]:
        """Return the kind and the name of the first cause; "none" and "" without one."""
        return (self.named[0][1].kind, self.named[0][1].name) if self.named else ("none", "")


def diagnosed(scenario: Scenario, lasts_ns: int | None = None) -> Outcome:
    """Simulate a job and diagnose it; without `lasts_ns`, until some seconds after the fault."""
    job_steps = _Steps(scenario)
    until_ns = scenario.start_ns + LASTS_NS if lasts_ns is None else lasts_ns
    named: list[tuple[int, Cause]] = []
    with tempfile.TemporaryDirectory(prefix="slackline-diagnosis-") as folder:
        job = Job(Path(folder))  # The records are passed directly, and no file is written.
        diagnosis = Diagnosis(job)
        written = heapq.merge(
            job_steps.records(until_ns),
            _engines(scenario, until_ns),
            key=lambda timed: timed[:2],
        )
        ready = next(written, None)
        for now_ns in range(SAMPLE_EVERY, until_ns + 1, SAMPLE_EVERY):
            while ready is not None and ready[0] + READ_AFTER_NS <= now_ns:
                job.take(ready[2])
                ready = next(written, None)
            job.settle(UNIX_NS + now_ns)
            named += [(now_ns, cause) for cause in diagnosis.update(UNIX_NS + now_ns)]
    return Outcome(named=tuple(named), start_ns=job_steps.start_ns or scenario.start_ns)


class _Steps:
    """The steps of a scenario's ranks, simulated in chunks."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._random = Random(f"{scenario.number} {scenario.law} steps")
        self._drawn: dict[tuple[int, int], tuple[StepTimes, int]] = {}
        self._ill_from: int | None = None
        self.start_ns: int | None = None
        """The time of the first step with a fault of a rank; None if there was none."""

    def records(self, until_ns: int) -> Iterator[Timed]:
        """Yield the records of the steps until `until_ns`, in the order of their times."""
        offset_ns = first = 0
        while offset_ns < until_ns:
            steps = min(CHUNK_STEPS, 20 + (until_ns - offset_ns) // (150 * MS))
            timed, offset_ns = self._chunk(first, steps, offset_ns)
            first += steps
            yield from sorted(timed, key=lambda each: each[:2])

    def _chunk(self, first: int, steps: int, offset_ns: int) -> tuple[list[Timed], int]:
        scenario = self._scenario
        plan = generate(Collective.ALL_REDUCE, "ring", RANKS)
        host = Host(rates_bps=(RATE_BPS,) * scenario.rails, latency_ps=50 * 10**6, cores=2)
        run = simulate_training(
            LAYERS,
            Fabric(hosts=(host,) * RANKS, seed=scenario.number + 1),
            lambda nbytes: Operation(plan=plan, count=nbytes // 4),
            steps=steps,
            group_bytes=2 << 20,
            faults=scenario.plan,
            times=lambda rank, step: self._times(rank, first + step, offset_ns),
        )
        timed: list[Timed] = []
        for rank in range(RANKS):
            ends = [0, *(ended[rank] // _PS for ended in run.backward_ps)]
            for step in range(steps - 1):
                record = self._summary(
                    rank,
                    first + step,
                    offset_ns + ends[step + 1],
                    ends[step + 1] - ends[step],
                    run.exposed_ps[step][rank] // _PS,
                )
                # The last parameters of a step are updated in the next forward.
                later, _ = self._drawn[rank, first + step + 1]
                written_ns = offset_ns + ends[step + 2] - sum(later.backward_ps) // _PS
                if self._alive(record.time_ns - UNIX_NS, written_ns):
                    timed.append((written_ns, rank, record))
        ended_ns = offset_ns + max(run.ended_ps) // _PS
        self._drawn = {key: each for key, each in self._drawn.items() if key[1] >= first + steps}
        return timed, ended_ns

    def _alive(self, *times_ns: int) -> bool:
        """Return whether the job still steps at these times: after a death all ranks wait."""
        scenario = self._scenario
        return scenario.kind is not Kind.DEAD or max(times_ns) < scenario.start_ns

    def _times(self, rank: int, step: int, offset_ns: int) -> StepTimes:
        """Return the durations of a rank's step, with noise, rare stalls and the fault."""
        scenario, random = self._scenario, self._random
        mine = rank == scenario.rank and scenario.kind in (Kind.HOST, Kind.RANK, Kind.LOADER)
        # Steps of a healthy job take 0.19 s.
        ill = mine and step >= scenario.start_ns // (190 * MS)
        if ill and self._ill_from is None:
            self._ill_from = step
        factor = scenario.factor * random.uniform(0.9, 1.1) if ill else 1.0
        factor *= max(0.7, random.gauss(1.0, 0.03))
        stall_ps = random.randrange(20, 150) * 10**9 if random.random() < 0.01 else 0
        stall_layer = random.randrange(len(LAYERS))
        forward = [round(layer.forward_ps * factor) for layer in LAYERS]
        forward[stall_layer] += stall_ps
        before_ps = round(random.uniform(2, 4) * 10**9)
        if ill and scenario.pause_ns and random.random() < 0.9:
            before_ps += round(scenario.pause_ns * _PS * random.uniform(0.7, 1.3))
        times = StepTimes(
            before_ps=before_ps,
            forward_ps=tuple(forward),
            backward_ps=tuple(round(layer.backward_ps * factor) for layer in LAYERS),
        )
        waits_ns = round(random.uniform(0.2, 1.5) * MS)
        if ill and scenario.kind is Kind.HOST:
            usual_ps = sum(layer.forward_ps + layer.backward_ps for layer in LAYERS)
            excess_ps = sum(times.forward_ps) + sum(times.backward_ps) - usual_ps
            waits_ns += round(max(0, excess_ps) / _PS * random.uniform(0.7, 1.0))
        if scenario.busy and step >= scenario.start_ns // (190 * MS):
            usual_ps = sum(layer.forward_ps + layer.backward_ps for layer in LAYERS)
            busy_ps = round(usual_ps * random.uniform(0.2, 1.2))
            waits_ns += busy_ps // _PS
            forward[stall_layer] += busy_ps
            times = replace(times, forward_ps=tuple(forward))
        self._drawn[rank, step] = times, waits_ns
        return times

    def _summary(
        self, rank: int, step: int, ended_ns: int, wall_ns: int, exposed_ns: int
    ) -> StepSummary:
        times, waits_ns = self._drawn[rank, step]
        if step == self._ill_from and self.start_ns is None:
            self.start_ns = ended_ns - wall_ns
        before_ns, backward_ns = times.before_ps // _PS, sum(times.backward_ps) // _PS
        return StepSummary(
            rank=rank,
            step=step,
            time_ns=UNIX_NS + ended_ns,
            wall_ns=wall_ns,
            exposed_ns=exposed_ns,
            reduced_bytes=sum(layer.gradient_bytes for layer in LAYERS),
            parameters=len(LAYERS),
            waited=1,
            forward_ns=wall_ns - before_ns - backward_ns,
            backward_ns=backward_ns,
            groups=(0,),
            group_bytes=(6 << 20,),
            group_posted_ns=(0,),
            group_exposed_ns=(0,),
            group_late_ns=(exposed_ns,),
            group_forward_exposed_ns=(exposed_ns,),
            run_ns=sum(times.forward_ps) // _PS + backward_ns - waits_ns,
            run_delay_ns=waits_ns,
        )


class _Effects:
    """The effects of a plan's faults on one path, looked up by time."""

    def __init__(self, plan: Plan, rails: int) -> None:
        self._plan, self._rails = plan, rails
        self._from_ns, self._until_ns = 0, -1
        self._table: dict[tuple[int, int, int], Effects] = {}

    def at(self, path: tuple[int, int, int], time_ns: int) -> Effects | None:
        if not self._from_ns <= time_ns < self._until_ns:
            self._table = self._plan.links(time_ns, RANKS, self._rails)
            change_ns = self._plan.next_change(time_ns)
            self._from_ns = time_ns
            self._until_ns = 1 << 62 if change_ns is None else change_ns
        return self._table.get(path)


def _networks(scenario: Scenario) -> list[Network]:
    """Return the network of each rail, with the scenario's faults."""
    made: list[Network] = []
    plan = scenario.engine_plan
    for rail in range(scenario.rails):
        seed = 1000 * scenario.number + rail
        network = healthy(RANKS, seed, jitter=exponential(JITTER_NS[scenario.law]))
        if rail:
            network.clocks = made[0].clocks
        network.rail, network.ring = rail, scenario.ring
        network.iteration_ns, network.compute_ns = 190 * MS, 60 * MS
        for (source, target), direction in network.directions.items():
            if scenario.law == "bursts":
                direction.burst_every_ns, direction.burst_ns = 20 * S, 150 * MS
            _disturb(direction, _Effects(plan, scenario.rails), (source, target, rail))
        if scenario.kind is Kind.HOST:
            network.pauses = {scenario.rank: _pauses(scenario)}
        made.append(network)
    return made


def _disturb(direction: Direction, effects: _Effects, path: tuple[int, int, int]) -> None:
    def read(name: str, otherwise: float) -> Callable[[int], float]:
        def at(time_ns: int) -> float:
            found = effects.at(path, time_ns)
            value = None if found is None else getattr(found, name)
            return otherwise if value is None else value

        return at

    rate_bps = read("rate_bps", RATE_BPS)
    down = read("down", False)
    direction.delay = read("delay_ns", 0)
    direction.rate = lambda time_ns: 0.94 * min(rate_bps(time_ns), RATE_BPS) / 8
    direction.loss = read("loss", 0.0)
    direction.down = lambda time_ns: bool(down(time_ns))


def _pauses(scenario: Scenario) -> list[tuple[int, int]]:
    """Return the times in which the engine of a host without free cores waits for a core."""
    random = Random(f"{scenario.number} pauses")
    time_ns, made = scenario.start_ns, []
    while time_ns < scenario.start_ns + LASTS_NS:
        begin_ns = time_ns + random.randrange(5 * MS, 60 * MS)
        time_ns = begin_ns + random.randrange(2 * MS, 20 * MS)
        made.append((begin_ns, time_ns))
    return made


def _engines(scenario: Scenario, until_ns: int) -> Iterator[Timed]:
    """Yield the records of all engines: headers, verdicts, reports, and the end of a job."""
    networks = _networks(scenario)
    clocks = networks[0].clocks
    order = 100
    for rank in range(RANKS):
        yield (
            0,
            rank,
            FileHeader(
                version=SCHEMA_VERSION,
                rank=rank,
                time_ns=UNIX_NS,
                monotonic_ns=clocks[rank].read(0),
                host=f"node{rank}",
                clock=f"boot{rank}",
                process=rank + 1,
            ),
        )
        yield (
            0,
            rank + RANKS,
            GroupOpened(
                rank=rank, time_ns=UNIX_NS, size=RANKS, epoch=1, members=tuple(range(RANKS))
            ),
        )
    trackers = [Tracker(clocks[rank].read(0)) for rank in range(RANKS)]
    reports = [_Reports(rank) for rank in range(RANKS)]
    sources = [[network.samples(rank, until_ns) for network in networks] for rank in range(RANKS)]
    dead = scenario.kind is Kind.DEAD
    for time_ns in range(SAMPLE_EVERY, until_ns + 1, SAMPLE_EVERY):
        after_death = dead and time_ns >= scenario.start_ns
        for rank in range(RANKS):
            taken = [next(source) for source in sources[rank]]
            if after_death and (rank == scenario.rank or not scenario.unplugged):
                continue
            now_ns = taken[0][0]
            samples = [sample for _, each in taken for sample in each]
            for verdict in trackers[rank].take(now_ns, samples):
                order += 1
                yield (
                    time_ns,
                    order,
                    LinkVerdict(
                        rank=rank,
                        time_ns=UNIX_NS + time_ns,
                        at_ns=verdict.time_ns - clocks[rank].read(0),
                        since_ns=verdict.since_ns - clocks[rank].read(0),
                        condition=verdict.condition.value,
                        source=verdict.source,
                        target=verdict.target,
                        rail=verdict.rail,
                        over_ns=verdict.over_ns,
                        reason=verdict.reason,
                    ),
                )
            if time_ns % S == 0:
                for report in reports[rank].take(now_ns, samples):
                    order += 1
                    yield time_ns, order, report
        if after_death and not scenario.unplugged and time_ns - SAMPLE_EVERY < scenario.start_ns:
            for rank in set(range(RANKS)) - {scenario.rank}:
                for record in _ended(rank, clocks[rank].read(time_ns), time_ns):
                    order += 1
                    yield time_ns, order, record


def _ended(rank: int, now_ns: int, time_ns: int) -> list[Record]:
    """Return the last records of a rank whose peer was killed: a failed operation, counters."""
    row = [1, 0, -1, 1 << 20, 9, 1, -1, 0, 0, 1, 1, now_ns - 10 * MS, now_ns - 9 * MS, now_ns, 0, 1]
    return [
        Operations(rank=rank, lost=0, rows=(records.Operation(*row),)),
        Counters(rank=rank, time_ns=UNIX_NS + time_ns, values={"tcp_frames_sent": 1}),
    ]


class _Reports:
    """The reports of one rank about its rails, one a second."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._before: dict[tuple[int, int], tuple[int, int]] = {}

    def take(self, now_ns: int, samples: list[RailSample]) -> Iterator[LinkReport]:
        for sample in samples:
            key = sample.peer, sample.rail
            then_ns, confirmed = self._before.get(key, (now_ns - S, 0))
            self._before[key] = now_ns, sample.confirmed_bytes
            # Acknowledgements and probes flow in both directions of each rail that is up.
            little = 4096 if sample.up else 0
            yield LinkReport(
                rank=self._rank,
                peer=sample.peer,
                rail=sample.rail,
                kind="tcp",
                at_ns=now_ns,
                interval_ns=now_ns - then_ns,
                sent_bytes=max(0, sample.confirmed_bytes - confirmed) + little,
                received_bytes=little,
                packets=0,
                resent=0,
                round_trip_ns=200 * US,
                queued_bytes=0,
                unconfirmed_bytes=0,
                state="up" if sample.up else "suspect",
                outward="",
                inward="",
            )
