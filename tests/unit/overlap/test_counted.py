"""Tests that gradients are only counted during a backward pass until the last one of a group has
arrived."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def backward(model, batch):
    model(batch).square().sum().backward()


def fail_in_the_middle(model, batch):
    """Run a backward pass that fails after half of the gradients."""

    def fail(*_):
        raise ArithmeticError("on purpose")

    handle = model.module[1].register_full_backward_hook(fail)
    with pytest.raises(ArithmeticError, match="on purpose"):
        backward(model, batch)
    handle.remove()


def same_gradients(module, plain):
    for mine, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


def test_gradients_that_are_asked_for_within_a_backward_are_reduced_in_two_parts(
    wrap, chain, batch
):
    plain = copy.deepcopy(chain)
    model, _, group = wrap(chain, group_bytes=1 << 20)
    handle = chain[1].register_full_backward_hook(lambda *_: model.synchronize())
    backward(model, batch)
    handle.remove()
    assert group.tags == [5]
    backward(plain, batch)
    model.synchronize()
    assert sorted(group.tags[1:]) == [0, 1]  # the gradients of the first layer came after the hook
    same_gradients(chain, plain)


def test_a_step_within_a_backward_leaves_what_comes_later_to_the_next(wrap, chain, batch):
    plain = copy.deepcopy(chain)
    model, optimizer, group = wrap(chain, group_bytes=1 << 20)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for net, opt in ((chain, optimizer), (plain, reference)):

        def step(*_, opt=opt):
            opt.step()
            opt.zero_grad()

        handle = net[1].register_full_backward_hook(step)
        backward(model if net is chain else plain, batch)
        handle.remove()
        opt.step()
    assert group.tags == [5, 5]
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_backward_that_failed_leaves_nothing_that_counts_within_no_sync(wrap, chain, batch):
    plain = copy.deepcopy(chain)
    model, _, group = wrap(chain, group_bytes=1 << 20)
    fail_in_the_middle(model, batch)
    assert group.posts == []
    for net in (model, plain):
        net.zero_grad()
    group.forget()
    with model.no_sync():
        backward(model, batch)
        backward(model, batch)
        assert group.posts == []
    backward(model, batch)
    assert group.tags == [5]
    for _ in range(3):
        backward(plain, batch)
    model.synchronize()
    same_gradients(chain, plain)


def test_no_sync_right_after_a_failed_backward_counts_nothing(wrap, chain, batch):
    model, _, group = wrap(chain, group_bytes=1 << 20)
    fail_in_the_middle(model, batch)
    with model.no_sync():
        backward(model, batch)
    assert group.posts == []
    backward(model, batch)
    assert group.tags == [5]


@pytest.mark.parametrize("group_bytes", [0, 100, 1 << 20])
def test_recomputed_layers_have_the_gradients_of_plain_ones(wrap, chain, batch, group_bytes):
    class Recomputed(nn.Module):
        def __init__(self, layers):
            super().__init__()
            self.layers = layers

        def forward(self, x):
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=True)
            return x

    inputs = batch.requires_grad_()  # reentrant checkpoints need an input that requires grad
    net = Recomputed(chain)
    plain = copy.deepcopy(net)
    model, optimizer, group = wrap(net, group_bytes=group_bytes)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    posted = {0: 6, 100: 3, 1 << 20: 1}[group_bytes]
    for _ in range(3):
        group.forget()
        for each, opt in ((model, optimizer), (plain, reference)):
            opt.zero_grad()
            backward(each, inputs)
            opt.step()
        assert len(group.posts) == posted
        assert group.agreements == []
    model.synchronize()
    for mine, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)
