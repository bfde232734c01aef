"""Tests of gradients that are added outside autograd, as a pipeline does in parts."""

import copy

import pytest
import torch

from slackline.overlap import DataParallel


def parts_of(net, batch):
    parameters = list(net.parameters())
    return parameters, torch.autograd.grad(net(batch).square().sum(), parameters)


def by_hand(model, batch):
    """Add to the gradients within no_sync, as autograd would, but without its hooks."""
    with model.no_sync():
        parameters, parts = parts_of(model.module, batch)
    model.expect_gradients()
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part if parameter.grad is None else parameter.grad + part
    return parameters


def plainly(net, optimizer, batches):
    for batch in batches:
        net(batch).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def test_each_reduction_starts_when_its_gradient_is_said_to_be_whole(wrap, chain, batch):
    model, _, group = wrap(chain)
    parameters = by_hand(model, batch)
    assert group.tags == []
    model.complete_gradients([parameters[4]])
    assert group.tags == [4]
    model.complete_gradients(parameters[:3])
    assert group.tags == [4, 0, 1, 2]


def test_steps_by_hand_are_those_of_autograd(wrap, chain, batch):
    plain = copy.deepcopy(chain)
    reference = sgd(plain)
    model, optimizer, group = wrap(chain, sgd(chain))
    for _ in range(3):
        model.complete_gradients(by_hand(model, batch))
        optimizer.step()
        optimizer.zero_grad()
        plainly(plain, reference, [batch])
    assert len(group.tags) == 18
    assert group.agreements == []
    model.synchronize()
    for mine, theirs in zip(chain.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_two_rounds_by_hand_before_a_step_add_up(wrap, chain, batch):
    plain = copy.deepcopy(chain)
    reference = sgd(plain)
    model, optimizer, group = wrap(chain, sgd(chain))
    for factor in (1, 2):
        model.complete_gradients(by_hand(model, factor * batch))
    optimizer.step()
    optimizer.zero_grad()
    plainly(plain, reference, [batch, 2 * batch])
    assert group.agreements == [[1] * 6]
    model.synchronize()
    for mine, theirs in zip(chain.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_rank_without_any_gradient_gets_the_average_too(ranks, rounds):
    def be(group):
        torch.manual_seed(0)
        net = torch.nn.Linear(3, 2)
        parameters = list(net.parameters())  # a lookup through the module would wait
        model = DataParallel(net, sgd(net), process_group=group)
        for turn in range(rounds):
            model.expect_gradients()
            if (group.rank + turn) % 2 == 0:  # the other rank computes nothing in this round
                for parameter in parameters:
                    more = torch.ones_like(parameter)
                    parameter.grad = more if parameter.grad is None else parameter.grad + more
            model.complete_gradients(parameters)
        model.synchronize()
        found = [parameter.grad.clone() for parameter in net.parameters()]
        model.zero_grad()
        model.close()
        return found

    for found in ranks(2, be):
        assert [set(each.flatten().tolist()) for each in found] == [{rounds / 2}] * 2
