"""Cases of faults during a change of members, drawn from seeds, and the results that are lawful.

A case has two to five processes in old groups, one change of members, and one or two processes that
have a fault at a step of the change. All processes begin in one group, go apart into the old
groups, and make the change. At the end those that live make a last change together.
"""

import json
import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass

__all__ = [
    *("DONE", "HELD", "MUFFLED_S", "STEPS", "STOPPED_S"),
    *("Case", "End", "Fault", "Outcome", "broken_laws", "draw_case"),
]

STEPS = (
    "before the call",
    "after it connected",
    "after it told its list",
    "while the group opens",
    "after the group is open",
    "after it said ready",
    "before it decides",
    "after the decision",
)
"""The steps at which a fault may occur, in their order."""
READY = STEPS.index("after it said ready")
DONE = "done"
"""The decision to go on with the new group. Each other decision says why it is given up."""

KINDS = {
    "dies": "is killed",
    "stops": "stops until the others have returned",
    "sleeps": "stops until the time of the change is over",
    "pauses": "stops for a moment",
    "cut": "loses its connections to the first process's store",
    "silent": "hears nothing of the first process's store any more",
    "muffled": "hears nothing of the first process's store for a moment",
    "aborts": "aborts its old group",
    "interrupted": "is interrupted",
    "late": "calls when the others have returned",
    "misled": "calls with another list",
}
"""The kinds of faults. Where the first process itself is cut, silent or muffled, its store is so
for the other processes."""
HELD = ("stops", "late")
"""The faults that last until the processes without such a fault have returned."""
STOPPED_S = {"stops": math.inf, "sleeps": 4.0, "pauses": 0.3}
"""How long a process stops. Three seconds after the call no process waits for another any more: one
is the timeout, and two are for an answer of the store. A moment is much less than the timeout."""
MUFFLED_S = 0.3
_WEIGHTS = {
    "dies": 6,
    "stops": 4,
    "sleeps": 1,
    "pauses": 2,
    "cut": 3,
    "silent": 1,
    "muffled": 2,
    "aborts": 2,
    "interrupted": 2,
}
_BEFORE_THE_CALL = {"late": 8, "misled": 10}
"""The weights of the faults that occur at the first step alone."""
_OUTSIDE = ("dies", "stops", "pauses", "aborts")
"""The faults of a process that is not in the list."""
_PREVENTING = ("dies", "sleeps", "interrupted", "misled")
"""The faults after which a process does not say in time that it is ready."""
_SEVERING = ("dies", "stops", "sleeps", "silent")
"""The faults that keep the decision in the first process's store from the other processes."""
_HARMLESS = ("pauses", "muffled", "cut", "aborts")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault of one process: its kind, and the step of the change at which it occurs."""

    process: int
    kind: str
    step: str

    @property
    def place(self) -> int:
        return STEPS.index(self.step)

    def __str__(self) -> str:
        return f"process {self.process} {KINDS[self.kind]} {self.step}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of one process's part in the change, as the process tells it."""

    new: bool
    """Whether the process has the new group."""
    kind: str = ""
    """The type of the error; empty without one."""
    text: str = ""
    word: str = ""
    """The decision that the store has given to the process; empty if it has not asked for it."""


@dataclass(frozen=True, kw_only=True)
class End:
    """The end of a change on all processes, as the conductor tells it."""

    outcomes: dict[int, Outcome]
    """The outcomes of the processes that live."""
    aborted: set[int]
    """The old groups that were aborted."""
    moved: set[int]
    """The processes that have made a further change."""

    def encode(self) -> str:
        """Return the end as text."""
        outcomes = [[each, asdict(outcome)] for each, outcome in self.outcomes.items()]
        return json.dumps([outcomes, sorted(self.aborted), sorted(self.moved)])

    @classmethod
    def decode(cls, text: str) -> "End":
        """Return the end that `encode` has returned as text."""
        outcomes, aborted, moved = json.loads(text)
        return cls(
            outcomes={each: Outcome(**told) for each, told in outcomes},
            aborted=set(aborted),
            moved=set(moved),
        )


@dataclass(frozen=True, kw_only=True)
class Case:
    """A change of members in a test: the old groups, the new members, and the faults."""

    seed: int
    count: int
    """The number of processes."""
    groups: tuple[int | None, ...]
    """The old group of each process; None for a process that comes without a group."""
    connected: tuple[bool, ...]
    """Whether an old group opens by init_process_group, and not by a change, by its number."""
    listed: tuple[int, ...]
    """The processes of the new group, in rank order; they meet at the first one."""
    wrong: tuple[int, ...]
    """The list of the process that calls with another one."""
    order: tuple[int, ...]
    """The processes of the first and the last group, in rank order. The first one never dies."""
    faults: tuple[Fault, ...]
    further: bool
    """Whether the others make a further change before a process that is held goes on."""
    rails: str

    def story(self) -> str:
        """Return the case as text."""
        groups = ", ".join(
            f"{list(self.members(group))} ({'init' if self.connected[group] else 'change'})"
            for group in sorted({group for group in self.groups if group is not None})
        )
        lone = [each for each in range(self.count) if self.groups[each] is None]
        faults = "; ".join(map(str, self.faults))
        wrong = f", another list {list(self.wrong)}" if self.fault("misled") else ""
        return (
            f"seed {self.seed}: {self.count} processes over {self.rails}; old groups "
            f"{groups or 'none'}; without a group {lone}; new list {list(self.listed)}{wrong}; "
            f"{faults}; {'then a further change without it; ' * self.further}"
            f"last list {list(self.order)}"
        )

    def members(self, group: int) -> tuple[int, ...]:
        """Return the processes of an old group, in rank order."""
        return tuple(each for each in range(self.count) if self.groups[each] == group)

    def fault(self, *kinds: str, of: int | None = None) -> bool:
        """Return whether a process, or the one given, has a fault of these kinds."""
        return any(each.kind in kinds and of in (None, each.process) for each in self.faults)

    def works(self, process: int, end: End) -> bool:
        """Return whether the group of a process works after the change."""
        if process in end.moved:
            return True
        new = end.outcomes[process].new
        group = self.groups[process]
        if not new and (group is None or group in end.aborted):
            return False
        return all(
            each in end.outcomes and end.outcomes[each].new == new and each not in end.moved
            for each in (self.listed if new else self.members(group))
        )


def draw_case(seed: int) -> Case:
    """Return the case of a seed."""
    dice = random.Random(seed)
    count = dice.choice((2, 3, 3, 3, 4, 4, 5))
    groups = tuple(dice.choice((0, 0, 0, 1, 1, None)) for _ in range(count))
    connected = (dice.random() < 0.5, dice.random() < 0.5)
    size = 1 if dice.random() < 0.03 else dice.randint(2, count)
    listed = tuple(dice.sample(range(count), size))
    faults: list[Fault] = []
    for _ in range(1 if dice.random() < 0.6 else 2):
        others = [each for each in range(count) if each not in [f.process for f in faults]]
        faults.append(_draw_fault(dice, others, listed, groups, faults, count))
    order = dice.sample(range(count), count)
    order.sort(key=lambda each: any(f.process == each and f.kind == "dies" for f in faults))
    return Case(
        seed=seed,
        count=count,
        groups=groups,
        connected=connected,
        listed=listed,
        wrong=_draw_wrong(dice, listed, count, faults),
        order=tuple(order),
        faults=tuple(faults),
        further=any(each.kind in HELD for each in faults) and dice.random() < 0.4,
        rails=dice.choice(("shm", "tcp")),
    )


def _draw_fault(
    dice: random.Random,
    others: list[int],
    listed: tuple[int, ...],
    groups: tuple[int | None, ...],
    before: list[Fault],
    count: int,
) -> Fault:
    """Return a fault of one of the processes `others`, which have none yet."""
    weights = [3 if each == listed[0] else 2 if each in listed else 1 for each in others]
    process = dice.choices(others, weights)[0]
    step = dice.choice(STEPS) if process in listed else STEPS[0]
    kinds = dict(_WEIGHTS)
    if process not in listed:
        kinds = {kind: kinds[kind] for kind in _OUTSIDE}
    elif step == STEPS[0]:
        kinds |= _BEFORE_THE_CALL
        if len(listed) == 1 or any(each.kind == "misled" for each in before):
            del kinds["misled"]
    if groups[process] is None:
        del kinds["aborts"]
    if sum(each.kind == "dies" for each in before) == count - 1:
        del kinds["dies"]
    kind = dice.choices(list(kinds), list(kinds.values()))[0]
    return Fault(process=process, kind=kind, step=step)


def _draw_wrong(
    dice: random.Random, listed: tuple[int, ...], count: int, faults: list[Fault]
) -> tuple[int, ...]:
    """Return another list than `listed`, for the process that is misled.

    The list names another process that calls with the right one, so that the two lists cannot both
    become groups.
    """
    absent = [each for each in range(count) if each not in listed]
    ways = ["turned"] + ["longer"] * bool(absent) + ["shorter"] * (len(listed) > 2)
    way = dice.choice(ways)
    if way == "longer":
        return (*listed, dice.choice(absent))
    misled = [each.process for each in faults if each.kind == "misled"]
    if way == "shorter":
        out = dice.choice([each for each in listed if each not in misled])
        return tuple(each for each in listed if each != out)
    return (*listed[1:], listed[0])


def broken_laws(case: Case, outcomes: Mapping[int, Outcome], reached: set[int]) -> list[str]:
    """Return how the end of a change breaks the laws, a text for each fault.

    `outcomes` are of the processes that live; `reached` are those whose fault has occurred.
    """
    callers = {each: outcomes[each] for each in case.listed if each in outcomes}
    new = [each for each in callers if callers[each].new]
    old = [each for each in callers if not callers[each].new]
    # A process that is misled may have met others at another process, whose store has no decision.
    words = {callers[each].word for each in callers if not case.fault("misled", of=each)} - {""}
    broken = [
        f"{new} have the new group, but {fault}"
        for fault in case.faults
        if new and fault.process in reached and _prevents(case, fault)
    ]
    if len(words) > 1:
        broken.append(f"the store has given several decisions: {words}")
    if new and words != {DONE}:
        broken.append(f"{new} have the new group, but the decision is {words or 'none'}")
    for each in old:
        if new and not _excused(case, each):
            broken.append(f"{new} have the new group, and {each} has not: {callers[each]}")
        if text := _wrong_error(case, each, callers[each]):
            broken.append(text)
    return broken


def _prevents(case: Case, fault: Fault) -> bool:
    """Return whether no process may have the new group after a fault that has occurred."""
    if fault.process not in case.listed or fault.place >= READY:
        return False
    if fault.kind in HELD:  # Others have waited for it, unless all are held.
        return any(not case.fault(*HELD, of=each) for each in case.listed)
    alone = len(case.listed) == 1
    return fault.kind in _PREVENTING and not (alone and fault.kind == "sleeps")


def _excused(case: Case, process: int) -> bool:
    """Return whether a process may lack the group that others have.

    Either the first process, whose store has the decision, cannot be asked, or this process hears
    nothing of it, or it was interrupted when it had said that it is ready.
    """
    ready = [each for each in case.faults if each.process == process and each.place >= READY]
    return (
        case.fault(*_SEVERING, of=case.listed[0])
        or case.fault("silent", of=process)
        or any(each.kind == "interrupted" for each in ready)
    )


def _wrong_error(case: Case, process: int, outcome: Outcome) -> str:
    """Return what is wrong with the error of a caller, or an empty string."""
    allowed = ["PeerError", "LinkError", "TimeoutError"]
    allowed += ["MismatchError"] * case.fault("misled")
    allowed += ["KeyboardInterrupt"] * case.fault("interrupted", of=process)
    if outcome.kind not in allowed:
        return f"process {process} has raised {outcome.kind}: {outcome.text}"
    listed = [each for each in case.faults if each.process in case.listed]
    harmless = all(each.kind in _HARMLESS for each in listed)
    if harmless and "Timed out" not in outcome.text:
        return f"nothing prevented the change, but {process} has {outcome.kind}: {outcome.text}"
    return ""
