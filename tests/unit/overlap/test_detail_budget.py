"""Tests of the limit on detailed records of steps."""

from types import SimpleNamespace

from slackline.overlap._detail_budget import DetailBudget
from slackline.overlap._recorder import Recorder
from slackline.overlap._timeline import Timeline
from slackline.records import Totals

_MS = 1_000_000


def test_details_take_a_400th_of_the_time_after_the_first_steps() -> None:
    budget = DetailBudget(0)
    detailed = 0
    for step in range(40_000):
        if budget.allows(step * 25 * _MS):
            budget.spend(_MS // 2)
            detailed += 1
    spent_ms = detailed * 0.5 * 1.25
    assert 1000 * 25 / 400 * 40 <= spent_ms <= 1000 * 25 / 400 * 40 + 100 + 1


def test_steps_whose_details_fit_are_all_detailed() -> None:
    budget = DetailBudget(0)
    for step in range(1000):
        assert budget.allows(step * 25 * _MS)
        budget.spend(40_000)


def test_time_without_steps_saves_up_no_more_than_a_limit() -> None:
    budget = DetailBudget(0)
    assert budget.allows(10**18)
    budget.spend(80 * _MS)
    assert not budget.allows(10**18)
    assert budget.allows(10**18 + 400)


class _Turns(DetailBudget):
    """A budget that allows every other step, the first one included."""

    def __init__(self) -> None:
        super().__init__(0)
        self._number = -1

    def allows(self, now_ns: int) -> bool:
        self._number += 1
        return self._number % 2 == 0


def test_a_step_without_details_keeps_its_sums_and_the_waits_of_the_step_before() -> None:
    now = iter(range(0, 10**9, 10))
    told = []
    recorder = Recorder(
        0, 0, told.append, timeline=Timeline(), budget=_Turns(), clock=lambda: next(now)
    )
    for _ in range(2):
        pending = SimpleNamespace(done=lambda: False, ended_ns=0)
        began = recorder.forward_began()
        recorder.forward_ended(began)
        recorder.posted(1000, 2, group=5, pending=pending)
        recorder.stepped()
        pending.ended_ns = recorder.clock()
        waits = recorder.clock()
        recorder.waited(waits, late=True, group=5)
        recorder.settled()
    first, second = told
    assert first.detailed
    assert first.groups == (5,)
    assert first.group_late_ns == (10,)
    assert first.group_step_exposed_ns == (10,)
    assert first.hidden_ns > 0
    assert not second.detailed
    assert (second.groups, second.group_late_ns, second.hidden_ns) == ((), (), None)
    assert (second.exposed_ns, second.reduced_bytes, second.parameters) == (10, 1000, 2)
    totals = Totals(0)
    for step in told:
        totals.add(step)
    run = totals.run()
    assert (run.wall_ns, run.detailed_wall_ns) == (first.wall_ns + second.wall_ns, first.wall_ns)
    assert run.hidden_ns == first.hidden_ns
