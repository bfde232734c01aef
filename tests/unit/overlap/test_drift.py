"""Tests that a trial of group sizes is repeated when step times change permanently, if a change of
the size leaves sums bit-identical."""

import re

import pytest
import torch
from torch import nn, optim

from slackline.errors import UsageError
from slackline.history import read_directory
from slackline.overlap import DataParallel
from slackline.overlap._recorder import Recorder
from slackline.overlap.reduction.tuning._drift import IN_A_ROW, LATER, WINDOW, Drift
from slackline.records import Decision, Promise

EVERYTHING = 3 * (65 + 9) * 4


def alone(figures):
    return lambda: figures


def run(drift, *windows):
    """Return the steps after which `drift` reports a change, for one step time per window."""
    told, steps = [], 0
    for milliseconds in windows:
        for _ in range(WINDOW):
            steps += 1
            if drift.step(int(milliseconds * 1e6)):
                told.append(steps)
    return told


@pytest.mark.parametrize("factor", [1.25, 0.8, 3])
def test_a_step_that_stays_longer_or_shorter_has_changed(factor):
    drift = Drift(alone, rest=0)
    windows = [20, 20, *[20 * factor] * IN_A_ROW, 20]
    assert run(drift, *windows) == [(2 + IN_A_ROW) * WINDOW + LATER]
    assert drift.told == f"a step takes {20 * factor:g} ms instead of 20 ms"


@pytest.mark.parametrize("windows", [[20, 40, 20, 40, 20], [20, 24, 24, 24], [20, 40, 10, 40, 10]])
def test_what_is_over_soon_or_small_or_goes_up_and_down_is_no_change(windows):
    assert run(Drift(alone, rest=0), *windows, windows[-1]) == []


def test_nothing_has_changed_for_good_while_it_rests():
    rest = 6 * WINDOW
    told = run(Drift(alone, rest=rest), 20, *[40] * 8)
    assert told[0] == rest + LATER


def test_the_ranks_averages_decide():
    posted = []

    def average(figures):
        posted.append(figures)
        return lambda: [2 * figures[0] if len(posted) > 1 else figures[0]]

    assert run(Drift(average, rest=0), *[20] * 4) == [3 * WINDOW + LATER]
    assert posted == [[20e6]] * 4


class Clock:
    """A clock that advances only when the test says so."""

    def __init__(self):
        self.now_ns = 0

    def __call__(self):
        return self.now_ns


def train(model, optimizer, steps, seed=0):
    for step in range(steps):
        generator = torch.Generator().manual_seed(100 * step + seed)
        model(torch.randn(2, 8, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def make(group, group_bytes=None):
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    optimizer = optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    model = DataParallel(module, optimizer, process_group=group, group_bytes=group_bytes)
    return model, optimizer


def groups_of(nbytes):
    return {"bytes": nbytes, "order": [5, 4, 3, 2, 1, 0]}


def tried_again(caplog):
    return [each.message for each in caplog.records if "tried again" in each.message]


def test_groups_are_tried_again_when_a_step_has_changed(
    manual_group, monkeypatch, caplog, tmp_path
):
    monkeypatch.setenv("SLACKLINE_TELEMETRY", str(tmp_path))
    clock = Clock()
    monkeypatch.setitem(Recorder.__init__.__kwdefaults__, "clock", clock)
    monkeypatch.setattr("slackline.overlap.reduction.tuning._tuning._REST", 1)
    monkeypatch.setattr("slackline.overlap.reduction.tuning._drift.WINDOW", 16)
    caplog.set_level("INFO", "slackline.overlap")
    model, optimizer = make(manual_group(size=3))
    costs = {0: 10_000_000, EVERYTHING: 20_000_000}

    def step(times):
        for _ in range(times):
            train(model, optimizer, 1)
            clock.now_ns += costs.get(model.group_bytes, 15_000_000)

    step(90)
    assert model.group_bytes == 0
    assert model.trial_result.startswith("one parameter each: 10 ms")
    costs.update({0: 40_000_000})
    step(4 * 16 + 90)
    assert len(tried_again(caplog)) == 1
    assert tried_again(caplog)[0].startswith("a step takes 40 ms instead of ")
    assert model.group_bytes == EVERYTHING
    assert model.trial_result.startswith(f"groups of {EVERYTHING} B: 20 ms")
    model.close()
    promises = [record for record in read_directory(tmp_path) if isinstance(record, Promise)]
    assert [(each.source, each.choice, each.wall_ns) for each in promises] == [
        ("groups", "one parameter each", 10_000_000),
        ("groups", f"groups of {EVERYTHING} B", 20_000_000),
    ]
    records = [record for record in read_directory(tmp_path) if isinstance(record, Decision)]
    assert {record.subject for record in records} == {"groups"}
    first, again, second = ((record.choice, record.reason) for record in records)
    everything = f"groups of {EVERYTHING} B"
    together = f"{everything} and one update"
    assert first == (
        "one parameter each",
        f"10 ms a step; {everything} 20 ms; {together} 20 ms",
    )
    assert again[0] == "another trial"
    assert f"{again[1]}: groups are tried again" == tried_again(caplog)[0]
    assert second == (
        everything,
        f"20 ms a step; {together} 20 ms; one parameter each 40 ms",
    )


def test_a_choice_of_bits_is_made_once_and_goes_with_the_optimizer_s_state(manual_group, caplog):
    caplog.set_level("INFO", "slackline.overlap")
    group = manual_group(size=3)
    group.rank_ordered = False
    model, optimizer = make(group)
    assert "slackline_groups" not in optimizer.state_dict()
    train(model, optimizer, 90)
    chosen = model.group_bytes
    saved = optimizer.state_dict()
    assert saved["slackline_groups"] == {"bytes": chosen, "order": [5, 4, 3, 2, 1, 0]}
    assert caplog.records[-1].message.endswith("; the optimizer's state keeps this choice")
    model.close()

    plain = optim.SGD(model.module.parameters(), lr=0.01, momentum=0.9)
    plain.load_state_dict(saved)
    other = manual_group(size=3)
    other.rank_ordered = False
    model, optimizer = make(other)
    optimizer.load_state_dict({**saved, "slackline_groups": groups_of(100)})
    assert model.group_bytes == 100
    other.forget()
    train(model, optimizer, 90)
    assert len(other.posts) == 90 * 6  # with 65 and 9 elements, 100 bytes hold one bias only
    assert model.group_bytes == 100
    assert optimizer.state_dict()["slackline_groups"]["bytes"] == 100
    model.close()


def test_where_bits_do_not_depend_on_it_nothing_is_saved_or_loaded(manual_group):
    model, optimizer = make(manual_group(size=3))
    train(model, optimizer, 90)
    saved = optimizer.state_dict()
    assert sorted(saved) == ["param_groups", "state"]
    optimizer.load_state_dict({**saved, "slackline_groups": groups_of(100)})
    assert model.group_bytes != 100
    model.close()


def test_a_choice_comes_into_effect_after_gradients_that_are_under_way(manual_group):
    group = manual_group(size=3)
    group.rank_ordered = False
    model, optimizer = make(group)
    saved = optimizer.state_dict()
    model(torch.ones(2, 8)).square().mean().backward()
    assert len(group.posts) == 1
    optimizer.load_state_dict({**saved, "slackline_groups": groups_of(0)})
    optimizer.step()
    optimizer.zero_grad()
    assert len(group.posts) == 1
    train(model, optimizer, 1)
    assert len(group.posts) == 1 + 6
    model.close()


def test_groups_that_were_asked_for_stay(manual_group):
    group = manual_group(size=3)
    group.rank_ordered = False
    model, optimizer = make(group, group_bytes=0)
    optimizer.load_state_dict({**optimizer.state_dict(), "slackline_groups": groups_of(100)})
    assert model.group_bytes == 0
    model.close()


@pytest.mark.parametrize(
    "wrong",
    [
        100,
        {"bytes": -1, "order": None},
        {"bytes": "100", "order": None},
        {"bytes": 100},
        {"bytes": 100, "order": [0, "1"]},
    ],
)
def test_a_choice_that_never_was_one_is_refused(manual_group, wrong):
    model, optimizer = make(manual_group(size=3))
    with pytest.raises(UsageError, match=re.escape(f"must be what state_dict() gave, not {wrong}")):
        optimizer.load_state_dict({**optimizer.state_dict(), "slackline_groups": wrong})
    model.close()
