"""Tests that one hook per gradient group suffices after some equal steps, and that any deviation is
noticed."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from slackline.errors import UsageError
from slackline.overlap.reduction._hooks import STEADY_STEPS

TOGETHER = 1 << 20


def backward(model, batch):
    model(batch).square().mean().backward()


def hooked(module):
    """Return the numbers of the parameters with a hook before their gradient, and of the parameters
    with a hook after their gradient."""
    parameters = list(enumerate(module.parameters()))
    return (
        [number for number, p in parameters if p._backward_hooks is not None],
        [number for number, p in parameters if p._post_accumulate_grad_hooks is not None],
    )


EACH = ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5])
FEW = {4: ([], [0]), 128: ([], [0, 2, 4])}
"""The parameters with hooks after STEADY_STEPS, by width. A weight of at least 64 KiB is copied
when it arrives."""


class Pair:
    """A wrapped model and its plain copy, which take the same steps."""

    def __init__(self, wrap, module, batch, **options):
        self.plain = copy.deepcopy(module)
        self.model, optimizer, self.group = wrap(module, **options)
        reference = torch.optim.SGD(self.plain.parameters(), lr=0.1, momentum=0.9)
        self.both = ((self.model, optimizer), (self.plain, reference))
        self.module, self.batch = module, batch
        self.few = FEW[batch.shape[1]]

    def train(self, steps, batch=None):
        for _ in range(steps):
            for model, optimizer in self.both:
                backward(model, self.batch if batch is None else batch)
                optimizer.step()
                optimizer.zero_grad()

    def do(self, function):
        for model, optimizer in self.both:
            function(model, optimizer)

    def check(self):
        self.model.synchronize()
        for mine, theirs in zip(self.module.parameters(), self.plain.parameters(), strict=True):
            assert torch.equal(mine, theirs)
            assert (mine.grad is None) == (theirs.grad is None)
            assert mine.grad is None or torch.equal(mine.grad, theirs.grad)


@pytest.fixture(params=FEW)
def steady(request, wrap):
    """Provide a pair that has trained until few hooks were left."""
    width = request.param
    torch.manual_seed(7)
    chain = nn.Sequential(*(nn.Linear(width, width) for _ in range(3)))
    pair = Pair(wrap, chain, torch.randn(3, width), group_bytes=TOGETHER)
    pair.train(STEADY_STEPS + 1)
    pair.group.forget()
    return pair


@pytest.mark.parametrize(
    ("group_bytes", "before", "after"),
    [(TOGETHER, [], [0]), (0, [], EACH[1]), (100, [], [0, 2, 4])],
)
def test_hooks_go_after_steps_that_are_alike(
    wrap, chain, batch, group_bytes, before, after
) -> None:
    pair = Pair(wrap, chain, batch, group_bytes=group_bytes)
    pair.train(STEADY_STEPS)
    assert hooked(chain) == EACH
    pair.train(1)
    assert hooked(chain) == (before, after)
    pair.group.forget()
    pair.train(2)
    assert hooked(chain) == (before, after)
    assert len(pair.group.posts) == 2 * len(after)
    pair.check()


def test_hooks_go_as_well_when_all_parameters_step_together(wrap, chain, batch):
    pair = Pair(wrap, chain, batch, group_bytes=TOGETHER)

    def clipped_step(model, optimizer):
        backward(model, batch)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(STEADY_STEPS):
        assert hooked(chain) == EACH
        pair.do(clipped_step)
    pair.do(clipped_step)
    assert hooked(chain) == ([], [0])
    pair.group.forget()
    pair.do(clipped_step)
    assert pair.group.tags == [5]
    pair.check()


class HalfUsed(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.used, self.idle = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return self.used(x)


def test_a_group_without_a_gradient_keeps_its_hooks_when_all_step_together(wrap, batch):
    torch.manual_seed(7)
    module = HalfUsed(batch.shape[1])
    pair = Pair(wrap, module, batch, group_bytes=TOGETHER)

    def clipped_step(model, optimizer):
        backward(model, batch)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(2 * STEADY_STEPS):
        pair.do(clipped_step)
    assert hooked(module) == ([2, 3], [0, 2, 3])
    pair.check()


def test_gradients_are_posted_within_the_backward_that_brings_them(steady):
    backward(steady.model, steady.batch)
    assert steady.group.tags == [5]


def test_gradients_of_a_second_backward_are_added(steady):
    for _ in range(2):
        steady.do(lambda model, _: backward(model, steady.batch))
        assert hooked(steady.module) == (EACH if steady.group.agreements else steady.few)
        steady.check()
    assert steady.group.agreements == [[1] * 6]
    steady.do(lambda _, optimizer: (optimizer.step(), optimizer.zero_grad()))
    steady.train(STEADY_STEPS + 1)
    assert hooked(steady.module) == steady.few
    steady.check()


def test_no_sync_accumulates(steady):
    with steady.model.no_sync():
        backward(steady.model, steady.batch)
        assert hooked(steady.module) == EACH
        assert steady.group.posts == []
    backward(steady.plain, steady.batch)
    steady.do(lambda model, _: backward(model, steady.batch))
    assert steady.group.tags == [5]
    steady.check()


def test_gradients_that_were_filled_with_zeros_are_all_waited_for(steady):
    steady.do(lambda model, optimizer: (backward(model, steady.batch), optimizer.step()))
    steady.do(lambda _, optimizer: optimizer.zero_grad(set_to_none=False))
    steady.group.forget()
    backward(steady.model, steady.batch)
    assert hooked(steady.module) == EACH
    assert steady.group.tags == [5]
    backward(steady.plain, steady.batch)
    steady.check()


@pytest.mark.parametrize("frozen", [0, 1, 4])
def test_a_parameter_that_is_frozen_holds_nothing_back(steady, frozen):
    for model in (steady.module, steady.plain):
        list(model.parameters())[frozen].requires_grad_(False)
    steady.train(3)
    steady.check()


class Gated(nn.Module):
    """A module of three layers, one of which can be left out."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.left_out = None

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            x = x if number == self.left_out else layer(x)
        return x


def test_a_gradient_that_does_not_come_is_noticed_at_the_backward_s_end(wrap, batch):
    for left_out in range(3):
        torch.manual_seed(3)
        pair = Pair(wrap, Gated(), batch, group_bytes=TOGETHER)
        pair.train(STEADY_STEPS + 1)
        assert hooked(pair.module) == ([], [0])
        pair.group.forget()
        pair.module.left_out = pair.plain.left_out = left_out
        pair.do(lambda model, _: backward(model, batch))
        assert pair.group.posts == []
        assert hooked(pair.module) == EACH  # reading the parameters posts their gradients
        assert pair.group.tags == [5]
        pair.check()
        pair.do(lambda _, optimizer: (optimizer.step(), optimizer.zero_grad()))
        pair.train(3)
        pair.check()


def test_a_group_that_gets_no_gradient_has_all_its_hooks_in_the_next_steps(wrap, batch):
    torch.manual_seed(3)
    pair = Pair(wrap, Gated(), batch, group_bytes=100)
    pair.train(STEADY_STEPS + 1)
    assert hooked(pair.module) == ([], [0, 2, 4])
    for _ in range(2):
        pair.module.left_out = pair.plain.left_out = 1
        pair.train(1)
        assert hooked(pair.module) == ([2, 3], [0, 2, 3, 4])
        pair.module.left_out = pair.plain.left_out = None
        pair.train(STEADY_STEPS + 4)  # the group stays split, because some steps lack a gradient
        assert hooked(pair.module) == ([], [0, 2, 3, 4])
    pair.check()


def test_a_backward_that_fails_leaves_its_gradients(steady):
    def fail(*_):
        raise ArithmeticError("on purpose")

    for model in (steady.model, steady.plain):
        handle = (model.module if model is steady.model else model)[1].register_full_backward_hook(
            fail
        )
        with pytest.raises(ArithmeticError, match="on purpose"):
            backward(model, steady.batch)
        handle.remove()
    assert steady.group.posts == []
    steady.check()
    assert steady.group.tags == [5]


def test_gradients_that_are_asked_for_within_a_backward_are_reduced_in_two_parts(steady):
    handle = steady.module[1].register_full_backward_hook(lambda *_: steady.model.synchronize())
    backward(steady.model, steady.batch)
    handle.remove()
    assert steady.group.tags == [5]
    backward(steady.plain, steady.batch)
    steady.check()
    assert sorted(steady.group.tags[1:]) == [0, 1]


def test_autograd_grad_leaves_nothing_to_reduce(steady):
    asked = list(steady.module.parameters())[2:4]
    found = torch.autograd.grad(steady.model(steady.batch).square().sum(), asked)
    plain = list(steady.plain.parameters())[2:4]
    expected = torch.autograd.grad(steady.plain(steady.batch).square().sum(), plain)
    assert all(map(torch.equal, found, expected))
    steady.model.synchronize()
    assert steady.group.posts == []
    assert hooked(steady.module) == steady.few
    steady.train(1)
    steady.check()


def test_a_backward_beside_the_forward_comes_before(steady):
    parameters = [list(model.parameters()) for model in (steady.module, steady.plain)]
    for mine in parameters:
        sum(p.square().sum() for p in mine).backward()
    assert steady.group.tags == [5]
    steady.do(lambda model, _: backward(model, steady.batch))
    steady.check()


def test_a_backward_beside_the_forward_does_not_change_what_is_in_flight_unseen(steady):
    parameters = list(steady.module.parameters())
    penalty = sum(p.square().sum() for p in parameters)
    steady.group.immediate = True
    backward(steady.model, steady.batch)
    steady.group.immediate = False
    penalty.backward()
    with pytest.raises(UsageError, match=r"'module\.0\.weight'|'\d\.\w+' was written to"):
        steady.model.synchronize()


def test_hooks_of_users_stay(steady):
    weight, few = steady.module[1].weight, steady.few
    seen = []
    handles = [
        weight.register_hook(lambda gradient: seen.append(gradient.shape == weight.shape)),
        weight.register_post_accumulate_grad_hook(lambda p: seen.append(p is weight)),
    ]
    steady.train(1)
    assert seen == [True, True]
    with steady.model.no_sync():  # all hooks are restored
        pass
    steady.train(STEADY_STEPS + 1)
    assert hooked(steady.module) == ([2], sorted({2, *few[1]}))
    seen.clear()
    steady.train(1)
    assert seen == [True, True]
    for handle in handles:
        handle.remove()


def test_a_closed_model_has_no_hooks(steady):
    steady.model.close()
    assert hooked(steady.module) == ([], [])
    backward(steady.module, steady.batch)
    backward(steady.plain, steady.batch)
    for mine, theirs in zip(steady.module.parameters(), steady.plain.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


def test_a_long_gradient_is_copied_when_it_comes(wrap):
    module = nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 128))
    pair = Pair(wrap, module, torch.randn(3, 128), group_bytes=TOGETHER)
    weight, bias = module[1].weight, module[1].bias
    (start, block), *_ = pair.group.memory.items()
    seen = []

    def note(parameter):
        address = parameter.grad.data_ptr()
        seen.append((parameter is weight, start <= address < start + len(block)))

    handles = [p.register_post_accumulate_grad_hook(note) for p in (weight, bias)]
    for _ in range(STEADY_STEPS + 2):
        seen.clear()
        pair.train(1)
        assert sorted(seen) == [(False, False), (True, True)]
    for handle in handles:
        handle.remove()
    pair.check()


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
def test_gradients_that_are_differentiated_again_are_left_where_they_are(wrap):
    module = nn.Linear(128, 128)
    pair = Pair(wrap, module, torch.randn(3, 128), group_bytes=TOGETHER)
    for model in (pair.model, pair.plain):
        context = pair.model.no_sync() if model is pair.model else nullcontext()
        with context:
            loss = model(pair.batch).square().sum()
            loss.backward(create_graph=True)
        weight = next(model.parameters())
        penalty = weight.grad.square().sum()
        (again,) = torch.autograd.grad(penalty, [weight])
        assert again.abs().sum() > 0
        pair.seen = [*getattr(pair, "seen", []), again]
        for parameter in model.parameters():
            parameter.grad = None
    assert torch.equal(*pair.seen)
