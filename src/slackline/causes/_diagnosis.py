"""The diagnosis of a job: the causes that its ranks' telemetry shows at present."""

from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

from slackline.causes._cause import Cause, Kind
from slackline.causes._cycles import Cycles
from slackline.causes._deaths import dead_ranks
from slackline.causes._hosts import Direction, Layout, layout
from slackline.causes._network import explain
from slackline.causes._pace import Pace
from slackline.causes._peers import REPORTED_NS, Peers
from slackline.causes._ranks import changed_together, slow_ranks
from slackline.causes._round_trips import RoundTrips
from slackline.causes._spells import Spell
from slackline.causes._udp_queues import loses_as_its_peers, waits_as_its_peers
from slackline.detect import Condition, Episode
from slackline.history import Job, Rank
from slackline.records import PipelineStep, StepSummary

__all__ = ["Diagnosis"]

_HOLD_NS = 1_000_000_000
"""The time for which a cause must be the best explanation before it is named: the links of a NIC
are found slow one after the other. The times of a NIC that flaps add up."""

_LINGER_NS = 3_000_000_000
"""The time without evidence after which a named cause is over: links may flap."""

_OPERATIONS_NS = 1_000_000_000
"""The age of a step from which its operations are not awaited: ranks write them four times a
second."""

_MESSAGES = ("send", "recv")
"""The names of operations between two ranks alone."""

_IN_FLIGHT_NS = 500_000_000
"""The time from the post of a collective in which others that were posted before may end."""

_Place = tuple[Kind, str, bool]
"""The kind and the name of a cause, and whether a comparison with peers shows it."""

_Step = TypeVar("_Step", StepSummary, PipelineStep)


class Diagnosis:
    """The causes of a job's slow steps, which `update` derives from the job's state."""

    def __init__(self, job: Job) -> None:
        """Begin a diagnosis of `job`, whose records another object adds."""
        self._job = job
        self._peers = Peers(job)
        self._layout: Layout | None = None
        self._paces: dict[int, Pace] = {}
        self._read_ns: dict[int, int] = {}
        self._cycles: dict[int, Cycles] = {}
        self._updated_ns = 0
        self._present: set[_Place] = set()
        self._present_ns: dict[_Place, int] = {}
        self._seen_ns: dict[_Place, int] = {}
        self._named: dict[_Place, Spell] = {}
        self._ended: list[Spell] = []
        self.spells: list[Spell] = []
        """The times in which causes held so far, in the order in which they were named."""

    @property
    def causes(self) -> list[Cause]:
        """The causes that hold at present, in the order in which they were named."""
        return [spell.cause for spell in self._named.values()]

    def take_ended(self) -> list[Spell]:
        """Return the spells of causes that have turned out to be over since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def update(self, now_ns: int) -> list[Cause]:
        """Return the causes that have become certain by the Unix time `now_ns`, each once.

        Call it a few times a second, after the job has read its records.
        """
        self._read_steps(now_ns)
        found = {
            (cause.kind, cause.name, cause.by_peers): cause for cause in self._candidates(now_ns)
        }
        fresh = []
        for place, cause in found.items():
            lasted_ns = now_ns - self._updated_ns if place in self._present else 0
            self._present_ns[place] = self._present_ns.get(place, 0) + lasted_ns
            self._seen_ns[place] = now_ns
            if place not in self._named:
                if self._present_ns[place] < _HOLD_NS and not cause.proven:
                    continue
                fresh.append(cause)
                self._named[place] = Spell(cause=cause, named_ns=now_ns)
                self.spells.append(self._named[place])
            self._named[place].links |= cause.links
        self._present, self._updated_ns = set(found), now_ns
        for place, seen_ns in list(self._seen_ns.items()):
            if now_ns - seen_ns > _LINGER_NS:
                del self._seen_ns[place], self._present_ns[place]
                self._end(place, seen_ns, found.values())
        return fresh

    def _end(self, place: _Place, seen_ns: int, present: Iterable[Cause]) -> None:
        """End the spell of a cause whose last evidence was seen at the Unix time `seen_ns`.

        A present cause that concerns the same ranks explains the evidence from then on, unless the
        evidence was a comparison with peers, which needs no change.
        """
        spell = self._named.pop(place, None)
        if spell is None:
            return
        spell.until_ns = seen_ns
        others = [cause for cause in present if set(cause.ranks) & set(spell.cause.ranks)]
        if spell.cause.by_peers:
            others = []
        spell.explained_by = others[0].name if others else ""
        self._ended.append(spell)

    def _read_steps(self, now_ns: int) -> None:
        """Pass the steps that were added since the last call to the ranks' detectors."""
        for number, rank in self._job.ranks.items():
            # Plain steps do not tell the own time of a rank whose thread waits in torch's code.
            plain = bool(rank.steps) and rank.steps[-1].plain
            recorded = bool(rank.pipeline) or (bool(rank.steps) and not plain)
            pace = self._paces.get(number)
            if pace is None or pace.recorded != recorded:
                pace = self._paces[number] = Pace(recorded=recorded)
                self._read_ns.pop(number, None)
            read_ns = self._read_ns.get(number, -1)
            if not recorded:
                self._read_calls(rank, pace, read_ns)
                continue
            if rank.pipeline:
                for stage_step in _newer(rank.pipeline, read_ns):
                    pace.take_pipeline_step(stage_step)
                    self._read_ns[number] = stage_step.time_ns
                continue
            for step in _newer(rank.steps, read_ns, optimizer=0):
                if not _complete(rank, step, now_ns):
                    break
                pace.take(step, _waits_within(rank, step))
                self._read_ns[number] = step.time_ns

    def _read_calls(self, rank: Rank, pace: Pace, read_ns: int) -> None:
        """Pass the steps that show in a rank's collectives to the rank's detectors.

        Collectives end in another order than that of their posts; the youngest ones wait until the
        earlier ones have ended.
        """
        ready_ns = rank.operations_ns - _IN_FLIGHT_NS
        fresh = [call for call in rank.calls if read_ns < call.posted_ns <= ready_ns]
        if not fresh:
            return
        fresh.sort(key=lambda call: call.posted_ns)
        self._read_ns[rank.number] = fresh[-1].posted_ns
        cycles = self._cycles.setdefault(rank.number, Cycles())
        for began_ns, own_ns in cycles.take(fresh):
            pace.take_cycle(began_ns, own_ns)
        pace.early_ns = cycles.latest_ns

    def _candidates(self, now_ns: int) -> list[Cause]:
        """Return the causes that explain the present state best."""
        plan = self._layout = layout(self._job, now_ns, self._layout)
        dead, gone = dead_ranks(self._job, plan, now_ns)
        trips = RoundTrips(self._job)
        silent = {_direction(each) for each in self._job.open_episodes if each.condition.broken}
        changed_links = [
            each
            for each in self._job.open_episodes
            if _direction(each) in silent or not self._expected(each)
        ]
        network = explain(changed_links, plan, now_ns, gone, trips=trips)
        late = {rank for cause in network if cause.kind is Kind.HOST for rank in cause.ranks}
        alive = {rank: pace for rank, pace in self._paces.items() if rank not in gone}
        slow = slow_ranks(alive, plan, late)
        hosts = {cause.name for cause in slow if cause.kind is Kind.HOST}
        if not hosts:
            self._forget_common_changes(alive)
        changed = [*dead, *(cause for cause in network if cause.name not in hosts), *slow]
        told = [*changed, *self._changed(now_ns)]
        compared = alive if self._alike(gone) else {}
        return [*changed, *self._peers.causes(plan, compared, now_ns, told, silent, gone)]

    def _expected(self, episode: Episode) -> bool:
        """Return whether a part that has always been worse than its peers explains an episode.

        Such a part varies more than its peers, and makes the traffic of other links come in bursts.
        A UDP rail that loses packets as others do, or whose data wait no longer than those of
        others, needs no explanation either.
        """
        peers, direction = self._peers, _direction(episode)
        if direction in peers.covered or episode.over_ns < peers.bursts_ns:
            return True
        if episode.condition is Condition.LOSING:
            return loses_as_its_peers(self._job, direction, episode.since_ns)
        slow = episode.condition is Condition.SLOW
        return slow and waits_as_its_peers(self._job, direction, episode.over_ns)

    def _alike(self, gone: Collection[int]) -> bool:
        """Return whether all ranks have the same part in a step, as far as their operations tell.

        Ranks that send messages, or that use groups of some ranks only, may have different parts.
        """
        ranks = [rank for rank in self._job.ranks.values() if rank.number not in gone]
        whole = tuple(range(self._job.world_size))
        return all(
            kind not in _MESSAGES and members == whole
            for rank in ranks
            for members, kind in rank.group_totals
        )

    def _changed(self, now_ns: int) -> list[Cause]:
        """Return the named causes that changes have shown and that present reports may tell of."""
        return [
            spell.cause
            for spell in self.spells
            if not spell.cause.by_peers
            and (spell.until_ns is None or now_ns - spell.until_ns < REPORTED_NS)
        ]

    def _forget_common_changes(self, paces: dict[int, Pace]) -> None:
        """Learn usual durations anew after a change of most ranks that no host explains."""
        for quantities in (
            [pace.compute for pace in paces.values()],
            [pace.pause for pace in paces.values()],
        ):
            if changed_together(paces, quantities):
                for pace in paces.values():
                    pace.restart()
                return


def _direction(episode: Episode) -> Direction:
    return episode.source, episode.target, episode.rail


def _complete(rank: Rank, step: StepSummary, now_ns: int) -> bool:
    """Return whether the operations of a step have been read; a rank may record none at all."""
    late = now_ns - step.time_ns >= _OPERATIONS_NS
    return late or not rank.operations or rank.operations_ns >= step.time_ns


def _waits_within(rank: Rank, step: StepSummary) -> list[tuple[int, int]]:
    """Return the rank's waits for operations that ended within the wall time of a step."""
    began_ns = step.time_ns - step.wall_ns
    found = []
    for wait in reversed(rank.waits):
        if wait[1] < began_ns:
            break
        found.append(wait)
    return found


def _newer(steps: Sequence[_Step], read_ns: int, *, optimizer: int | None = None) -> list[_Step]:
    """Return the steps after the Unix time `read_ns`, of one optimizer if it is given."""
    found = []
    for step in reversed(steps):
        if optimizer is not None and getattr(step, "optimizer", optimizer) != optimizer:
            continue
        if step.time_ns <= read_ns:
            break
        found.append(step)
    return found[::-1]
