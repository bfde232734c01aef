"""Tests of the parts of a reduction that computation hides, by phase of the training step."""

import pytest
import torch
from torch import nn, optim

from slackline.overlap import _timeline
from slackline.overlap._recorder import Recorder
from slackline.overlap._timeline import Timeline, TrainingPhase
from slackline.records import summarize


class Ticks:
    """A clock that the test sets."""

    def __init__(self, now=0):
        self.now = now

    def __call__(self):
        return self.now


class Reduction:
    """A reduction that ends at a time that the test gives; 0: the time is not known."""

    def __init__(self, ended_ns, *, done=False):
        self.ended_ns = ended_ns
        self._done = done

    def done(self):
        return self._done

    def wait(self):
        return


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that every new Recorder reads."""
    ticks = Ticks(1)
    monkeypatch.setitem(Recorder.__init__.__kwdefaults__, "clock", ticks)
    return ticks


def recorded():
    """Return a recorder with a timeline, its clock and the list of its summaries."""
    ticks, told = Ticks(), []
    recorder = Recorder(0, 0, told.append, timeline=Timeline(), clock=ticks, unix=lambda: 77)
    return recorder, ticks, told


def test_each_group_has_its_hidden_and_exposed_time_by_phase():
    recorder, clock, told = recorded()
    clock.now = 10
    began = recorder.forward_began()
    clock.now = 40
    recorder.forward_ended(began)
    clock.now = 50
    recorder.posted(100, 2, group=4, pending=Reduction(65))
    clock.now = 60
    recorder.posted(60, 1, group=0, pending=Reduction(130))
    clock.now = 70
    recorder.step_called()
    clock.now = 72
    recorder.stepped()
    recorder.updated(5)
    clock.now = 90
    recorder.forward_began()
    clock.now = 130
    recorder.waited(100, late=True, group=0)
    recorder.updated(7)
    recorder.settled()
    (step,) = told
    assert (step.wall_ns, step.forward_ns, step.backward_ns, step.optimizer_ns) == (72, 30, 30, 12)
    assert (step.groups, step.group_posted_ns, step.group_ended_ns) == ((4, 0), (50, 60), (65, 130))
    assert step.group_backward_hidden_ns == (15, 10)
    assert step.group_step_hidden_ns == (0, 20)
    assert step.group_forward_hidden_ns == (0, 10)
    assert step.group_forward_exposed_ns == (0, 30)
    assert step.group_backward_exposed_ns == step.group_step_exposed_ns == ()
    assert (step.group_exposed_ns, step.group_late_ns, step.exposed_ns) == ((0, 0), (0, 30), 30)
    # One of the two reductions ran from 50 to 130; the thread waited from 100 on.
    assert step.hidden_ns == 50


def test_a_wait_for_one_group_hides_no_other_group():
    recorder, clock, told = recorded()
    recorder.forward_ended(recorder.forward_began())
    recorder.posted(8, 1, group=0, pending=Reduction(30))
    recorder.posted(8, 1, group=1, pending=Reduction(50))
    clock.now = 30
    recorder.waited(20, group=0)
    clock.now = 60
    recorder.step_called()
    recorder.stepped()
    recorder.settled()
    (step,) = told
    assert step.group_backward_exposed_ns == (10, 0)
    assert step.group_backward_hidden_ns == (20, 40)
    assert step.hidden_ns == 40


def test_a_gradient_that_is_reduced_twice_has_the_time_of_both_reductions():
    recorder, clock, told = recorded()
    recorder.forward_ended(recorder.forward_began())
    recorder.posted(8, 1, group=3, pending=Reduction(20))
    clock.now = 40
    recorder.posted(8, 1, group=3, pending=Reduction(45))
    clock.now = 50
    recorder.stepped()
    recorder.settled()
    (step,) = told
    assert (step.group_ended_ns, step.group_backward_hidden_ns) == ((45,), (25,))
    assert step.hidden_ns == 25


def test_a_reduction_within_its_post_hides_nothing():
    recorder, clock, told = recorded()
    recorder.forward_ended(recorder.forward_began())
    clock.now = 20
    recorder.posted(8, 1, group=0, pending=Reduction(0, done=True))
    clock.now = 50
    recorder.stepped()
    recorder.settled()
    (step,) = told
    assert (step.group_ended_ns, step.hidden_ns) == ((20,), 0)


def test_a_step_with_a_reduction_without_times_has_an_unknown_hidden_time():
    recorder, clock, told = recorded()
    recorder.forward_ended(recorder.forward_began())
    clock.now = 20
    recorder.posted(8, 1, group=0, pending=Reduction(0, done=True))
    recorder.posted(8, 1, group=1, pending=Reduction(40))
    recorder.posted(8, 1, group=2, pending=Reduction(0))
    clock.now = 50
    recorder.stepped()
    recorder.settled()
    (step,) = told
    assert step.group_ended_ns == (20, 40, 0)
    assert step.group_backward_hidden_ns == (0, 20, 0)
    assert step.hidden_ns is None
    assert "hidden_ms" not in step.scalars()
    run = summarize(0, told)
    assert (run.wall_ns, run.detailed_wall_ns, run.hidden_ns) == (50, 0, 0)


def test_only_the_latest_spans_are_kept(monkeypatch):
    monkeypatch.setattr(_timeline, "MOST_SPANS", 2)
    timeline = Timeline()
    timeline.enter(TrainingPhase.FORWARD, 10)
    timeline.enter(TrainingPhase.BACKWARD, 20)
    assert timeline.hidden(5, 27) == (10, 7, 5)
    timeline.enter(TrainingPhase.STEP, 30)
    assert timeline.hidden(5, 27) == (0, 7, 0)
    assert timeline.hidden(22, 33) == (0, 8, 3)


def test_a_wrapped_model_reports_what_its_backward_and_its_step_hide(wrap, chain, batch, clock):
    told = []
    model, optimizer, group = wrap(chain, group_bytes=1 << 20, on_step=told.append)
    group.clock = clock
    clock.now = 101
    model(batch).square().sum().backward()
    clock.now = 151
    optimizer.step()
    clock.now = 181
    group.complete()
    clock.now = 201
    model(batch)
    (step,) = told
    assert (step.group_posted_ns, step.group_ended_ns) == ((100,), (180,))
    assert (step.group_backward_hidden_ns, step.group_step_hidden_ns) == ((50,), (30,))
    assert (step.hidden_ns, step.exposed_ns) == (80, 0)


def test_the_optimizer_s_own_time_is_recorded_for_pending_and_for_whole_steps(
    wrap, chain, batch, clock, monkeypatch
):
    inner = optim.SGD.step

    def step(self, *args, **kwargs):
        clock.now += 7
        return inner(self, *args, **kwargs)

    monkeypatch.setattr(optim.SGD, "step", step)
    model, optimizer, group = wrap(chain)
    group.immediate = True
    model(batch).square().sum().backward()
    optimizer.step()
    assert model.last_step.optimizer_ns == 7
    optimizer.zero_grad()
    model(batch).square().sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    assert (model.last_step.step, model.last_step.optimizer_ns) == (1, 7)
    assert model.run_summary().optimizer_ns == 14


def test_the_time_of_closures_is_not_the_optimizer_s(wrap, chain, batch, clock):
    def closure():
        clock.now += 100
        optimizer.zero_grad()
        loss = model(batch).square().sum()
        loss.backward()
        return loss

    class Slow(optim.SGD):
        def step(self, closure=None):
            clock.now += 3
            return super().step(closure)

    own = Slow(chain.parameters(), lr=0.1)
    model, optimizer, group = wrap(chain, own)
    group.immediate = True
    optimizer.step(closure)
    assert model.last_step.optimizer_ns == 3


def test_a_blocking_agreement_is_exposed_time(wrap, chain, batch, clock):
    model, optimizer, group = wrap(chain)
    group.immediate = True
    inner = group.post

    def slow(operation, **how):
        clock.now += 11 if how.get("blocking") else 0
        return inner(operation, **how)

    group.post = slow
    for _ in range(2):
        model(batch).square().sum().backward()
    optimizer.step()
    assert (model.last_step.exposed_ns, model.last_step.waited) == (11, 0)
    assert torch.isfinite(chain[0].weight).all()
