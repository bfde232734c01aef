"""Tests that the separate step of one parameter is bit-identical to the plain step, for every
optimizer."""

import copy
import math

import pytest
import torch
from torch import nn, optim

from slackline.overlap._choice import StepFacts, choose, steps_alone


def backward(model, batch):
    model(batch).square().sum().backward()


ALONE = {
    "SGD": lambda p: optim.SGD(p, lr=0.1),
    "SGD with everything": lambda p: optim.SGD(
        p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01
    ),
    "SGD Nesterov, maximized": lambda p: optim.SGD(
        p, lr=0.01, momentum=0.9, nesterov=True, maximize=True
    ),
    "SGD foreach": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "SGD fused": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adam": lambda p: optim.Adam(p, lr=0.1),
    "Adam amsgrad": lambda p: optim.Adam(p, lr=0.1, amsgrad=True, weight_decay=0.1),
    "Adam foreach": lambda p: optim.Adam(p, lr=0.1, foreach=True),
    "Adam fused": lambda p: optim.Adam(p, lr=0.1, fused=True),
    "Adam with a tensor rate": lambda p: optim.Adam(p, lr=torch.tensor(0.1)),
    "AdamW": lambda p: optim.AdamW(p, lr=0.1, weight_decay=0.1),
    "Adamax": lambda p: optim.Adamax(p),
    "NAdam": lambda p: optim.NAdam(p),
    "RAdam": lambda p: optim.RAdam(p),
    "RMSprop": lambda p: optim.RMSprop(p, momentum=0.9, centered=True),
    "Rprop": lambda p: optim.Rprop(p),
    "ASGD": lambda p: optim.ASGD(p),
    "Adadelta": lambda p: optim.Adadelta(p),
    "Adagrad": lambda p: optim.Adagrad(p, lr_decay=0.1),
    "Adafactor": lambda p: optim.Adafactor(p),
}


def run(net, layers, optimizer, batch, steps=5, scheduler=None):
    for _ in range(steps):
        backward(net, batch)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        optimizer.zero_grad()
    return [parameter.detach().clone() for parameter in layers.parameters()]


def assert_same_run(wrap, layers, batch, make, scheduled=None):
    plain = copy.deepcopy(layers)
    optimizer, reference = make(layers), make(plain)
    model, optimizer, group = wrap(layers, optimizer)
    schedulers = [scheduled(opt) if scheduled else None for opt in (optimizer, reference)]
    mine = run(model, layers, optimizer, batch, scheduler=schedulers[0])
    theirs = run(plain, plain, reference, batch, scheduler=schedulers[1])
    for a, b in zip(mine, theirs, strict=True):
        assert torch.equal(a, b)
    return model, optimizer, group


@pytest.mark.parametrize("make", ALONE.values(), ids=ALONE)
def test_each_parameter_alone_steps_like_all_together(wrap, chain, batch, make):
    _, _, group = assert_same_run(wrap, chain, batch, lambda net: make(net.parameters()))
    assert group.waits[:2] == [0, 1]


@pytest.mark.skipif(not hasattr(optim, "Muon"), reason="torch has no Muon yet")
def test_muon_steps_each_matrix_alone(wrap, batch):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Linear(6, 4, bias=False))
    _, _, group = assert_same_run(wrap, net, batch, lambda net: optim.Muon(net.parameters()))
    assert group.waits


def test_groups_keep_their_own_settings(wrap, chain, batch):
    def make(net):
        weights = [p for p in net.parameters() if p.dim() > 1]
        others = [p for p in net.parameters() if p.dim() == 1]
        groups = [{"params": weights, "weight_decay": 0.1}, {"params": others, "lr": 0.5}]
        return optim.AdamW(groups, lr=0.01, weight_decay=0.0)

    assert_same_run(wrap, chain, batch, make)


SCHEDULERS = {
    "exponential": lambda o: optim.lr_scheduler.ExponentialLR(o, 0.5),
    "one cycle": lambda o: optim.lr_scheduler.OneCycleLR(o, 0.3, total_steps=10),
    "warm-up": lambda o: optim.lr_scheduler.LinearLR(o, 0.1, total_iters=4),
}


@pytest.mark.parametrize("scheduled", SCHEDULERS.values(), ids=SCHEDULERS)
@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)], ids=["float", "tensor"])
def test_a_late_step_uses_the_settings_of_the_moment_step_was_called(
    wrap, chain, batch, scheduled, rate
):
    def make(net):
        copied = rate.clone() if isinstance(rate, torch.Tensor) else rate
        return optim.SGD(net.parameters(), lr=copied, momentum=0.9)

    assert_same_run(wrap, chain, batch, make, scheduled)


def test_a_scheduler_that_came_before_the_wrapping_works_on(wrap, chain, batch):
    plain = copy.deepcopy(chain)
    results = []
    for net in (chain, plain):
        optimizer = optim.SGD(net.parameters(), lr=0.1)
        scheduler = optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        model = wrap(net, optimizer)[0] if net is chain else net
        results.append(run(model, net, optimizer, batch, scheduler=scheduler))
    for mine, theirs in zip(*results, strict=True):
        assert torch.equal(mine, theirs)


def test_a_closure_is_called_and_its_gradients_are_reduced(wrap, manual_group, chain, batch):
    plain = copy.deepcopy(chain)
    group = manual_group(size=2, peers=lambda tag, mine: mine)
    results = []
    for net in (chain, plain):
        optimizer = optim.LBFGS(net.parameters(), lr=0.1, max_iter=4)
        model = wrap(net, optimizer, group=group)[0] if net is chain else net

        def closure(model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = model(batch).square().sum()
            loss.backward()
            return loss

        losses = [optimizer.step(closure) for _ in range(3)]
        results.append([*losses, *(p.detach() for p in net.parameters())])
    for mine, theirs in zip(*results, strict=True):
        assert torch.equal(mine, theirs)
    assert group.tags.count(0) > 3


def test_hooks_around_the_step_see_all_parameters_stepped(wrap, chain, batch):
    model, optimizer, group = wrap(chain)
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append(chain[0].weight.detach().clone()))
    before = chain[0].weight.detach().clone()
    backward(model, batch)
    optimizer.step()
    assert sorted(group.waits) == [0, 1, 2, 3, 4, 5]
    assert len(seen) == 1
    assert not torch.equal(seen[0], before)


def test_an_optimizer_that_is_not_known_steps_all_together(wrap, chain, batch):
    class Mine(optim.SGD):
        pass

    model, optimizer, group = wrap(chain, Mine(chain.parameters(), lr=0.1))
    backward(model, batch)
    optimizer.step()
    assert sorted(group.waits) == [0, 1, 2, 3, 4, 5]


def test_several_optimizers_share_one_model(wrap, chain, batch):
    plain = copy.deepcopy(chain)

    def make(net):
        return (
            optim.Adam([p for p in net.parameters() if p.dim() > 1], lr=0.1),
            optim.SGD([p for p in net.parameters() if p.dim() == 1], lr=0.1),
        )

    mine, theirs = make(chain), make(plain)
    steps = []
    model, _, _ = wrap(chain, mine, on_step=lambda s: steps.append((s.optimizer, s.step)))
    for net, optimizers in ((model, mine), (plain, theirs)):
        for turn in range(4):
            backward(net, batch)
            optimizers[0].step()
            if turn % 2:
                optimizers[1].step()
                optimizers[1].zero_grad()
            optimizers[0].zero_grad()
    model.synchronize()
    for a, b in zip(chain.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert sorted(steps) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]


def test_a_group_that_is_added_later_is_reduced_too(wrap, chain, batch):
    plain = copy.deepcopy(chain)
    results = []
    for net in (chain, plain):
        optimizer = optim.Adam(net[2].parameters(), lr=0.1)
        model = wrap(net, optimizer)[0] if net is chain else net
        for turn in range(3):
            if turn == 1:
                optimizer.add_param_group({"params": list(net[0].parameters()), "lr": 0.2})
            backward(model, batch)
            optimizer.step()
            model.zero_grad()
        results.append([parameter.detach() for parameter in net.parameters()])
    for mine, theirs in zip(*results, strict=True):
        assert torch.equal(mine, theirs)


def test_a_layer_that_thaws_is_reduced_from_then_on(wrap, chain, batch):
    plain = copy.deepcopy(chain)
    results = []
    for net in (chain, plain):
        net[0].requires_grad_(False)
        optimizer = optim.SGD(net.parameters(), lr=0.1)
        if net is chain:
            model, _, group = wrap(net, optimizer)
        else:
            model = net
        for turn in range(4):
            net[0].requires_grad_(turn >= 2)
            net[1].requires_grad_(turn < 3)
            backward(model, batch)
            optimizer.step()
            optimizer.zero_grad()
        results.append([parameter.detach() for parameter in net.parameters()])
    for mine, theirs in zip(*results, strict=True):
        assert torch.equal(mine, theirs)
    assert [group.tags.count(tag) for tag in range(6)] == [2, 2, 3, 3, 4, 4]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_and_a_scaler_work_as_in_one_process(wrap, chain, batch, dtype):
    plain = copy.deepcopy(chain)
    results = []
    for net in (chain, plain):
        optimizer = optim.AdamW(net.parameters(), lr=0.1)
        model = wrap(net, optimizer)[0] if net is chain else net
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
        for turn in range(4):
            with torch.autocast("cpu", dtype=dtype):
                loss = model(batch).square().sum()
            if turn == 2:
                loss = loss * math.inf
            scaler.scale(loss).backward()
            if turn == 1:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        results.append([scaler.get_scale(), *(p.detach() for p in net.parameters())])
    assert results[0][0] == results[1][0]
    for mine, theirs in zip(results[0][1:], results[1][1:], strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_of_parameters_are_reduced_as_they_are(wrap, chain, batch, dtype):
    chain, batch = chain.to(dtype), batch.to(dtype)
    assert_same_run(wrap, chain, batch, lambda net: optim.SGD(net.parameters(), lr=0.01))


def test_complex_and_transposed_parameters_are_reduced(wrap, batch):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.spectrum = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))
            self.turned = nn.Parameter(torch.randn(4, 4).t())
            self.kernel = nn.Parameter(
                torch.randn(2, 3, 2, 2).to(memory_format=torch.channels_last)
            )
            self.scalar = nn.Parameter(torch.tensor(1.5))
            self.empty = nn.Parameter(torch.empty(0, 3))

        def forward(self, x):
            y = (x.to(torch.complex64) @ self.spectrum).abs() @ self.turned
            return y * self.kernel.sum() * self.scalar + self.empty.sum()

    torch.manual_seed(0)
    assert_same_run(wrap, Odd(), batch, lambda net: optim.Adam(net.parameters(), lr=0.01))


def test_a_tied_parameter_is_posted_once(wrap, batch):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(4, 4)
            self.two = nn.Linear(4, 4)
            self.two.weight = self.one.weight

        def forward(self, x):
            return self.two(self.one(x))

    torch.manual_seed(0)
    _, _, group = assert_same_run(
        wrap, Tied(), batch, lambda net: optim.SGD(net.parameters(), lr=0.1)
    )
    assert sorted(group.tags) == sorted([0, 1, 2] * 5)


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_layers_post_once_as_well(wrap, chain, batch, reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = chain

        def forward(self, x):
            x = x.clone().requires_grad_()
            for layer in self.layers:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=reentrant)
            return x

    _, _, group = assert_same_run(
        wrap, Checkpointed(), batch, lambda net: optim.SGD(net.parameters(), lr=0.1)
    )
    assert sorted(group.tags) == sorted(list(range(6)) * 5)


def facts(**changes):
    usual = {
        "alone": True,
        "arguments": False,
        "hooks": False,
        "scaled": False,
        "differentiable": False,
        "reduced": False,
        "steps_together": False,
    }
    return StepFacts(**{**usual, **changes})


def test_a_step_is_deferred_when_nothing_can_tell_the_difference():
    assert choose(facts()).deferred


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"alone": False}, "the optimizer may look at several parameters at once"),
        ({"arguments": True}, "the step has a closure or other arguments"),
        ({"hooks": True}, "hooks are registered around the step"),
        ({"scaled": True}, "a GradScaler scales within the step"),
        ({"differentiable": True}, "the step is to be differentiated"),
        ({"reduced": True}, "all gradients are there"),
        ({"steps_together": True}, "steps were shorter so in a trial, or are tried so now"),
    ],
)
def test_a_step_of_all_together_says_why(changes, reason):
    choice = choose(facts(**changes))
    assert (choice.deferred, choice.reason) == (False, reason)


def test_optimizers_that_look_at_all_parameters_are_not_stepped_alone():
    assert not steps_alone(optim.LBFGS)
    assert not steps_alone(optim.SparseAdam)
    assert steps_alone(optim.AdamW)


@pytest.mark.parametrize("set_to_none", [[False, True], [True, False], [False, False], [True]])
def test_gradients_are_cleared_as_by_the_last_calls_while_a_step_is_pending(
    wrap, chain, batch, set_to_none
):
    plain = copy.deepcopy(chain)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, _ = wrap(chain)
    for net, opt in ((model, optimizer), (plain, reference)):
        net(batch).square().sum().backward()
        opt.step()
        for each in set_to_none:
            opt.zero_grad(set_to_none=each)
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert (mine.grad is None) == (theirs.grad is None)
        assert mine.grad is None or torch.equal(mine.grad, theirs.grad)


def test_gradients_after_a_step_that_failed_are_read_reduced(wrap, manual_group, chain, batch):
    def fail(*_):
        raise ArithmeticError("on purpose")

    plain = copy.deepcopy(chain)
    group = manual_group(size=2, peers=lambda tag, mine: 2 * mine)  # so the mean is 1.5 times mine
    model, optimizer, _ = wrap(chain, group=group)
    failing = optimizer.register_step_pre_hook(fail)
    for step in range(2):
        for net in (model, plain):
            backward(net, batch)
        if not step:
            with pytest.raises(ArithmeticError, match="on purpose"):
                optimizer.step()
    failing.remove()
    for mine, theirs in zip(optimizer.param_groups[0]["params"], plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, 1.5 * theirs.grad)
