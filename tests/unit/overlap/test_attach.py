"""Tests of optimizers that DataParallel is given after the wrapping."""

import copy

import pytest
import torch
from torch import nn

from slackline.errors import UsageError
from slackline.overlap import DataParallel

UNATTACHED = (
    "the model has no optimizer: call attach(optimizer) after the optimizer was made, and before "
    "the model is trained"
)


@pytest.fixture
def model(manual_group, chain):
    model = DataParallel(chain, process_group=manual_group(), group_bytes=0)
    yield model
    model.close()


def adam(net):
    return torch.optim.Adam(net.parameters(), lr=0.1)


def train(model, optimizer, batch):
    for _ in range(3):
        model(batch).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_model_trains_like_one_that_was_wrapped_with_its_optimizer(model, batch):
    plain = copy.deepcopy(model.module)
    optimizer = adam(model)
    model.attach(optimizer)
    train(model, optimizer, batch)
    train(plain, adam(plain), batch)
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_ranks_have_the_values_of_rank_0_after_attach(ranks):
    def be(group):
        torch.manual_seed(group.rank)
        model = DataParallel(nn.Linear(4, 4), process_group=group)
        model.attach([adam(model)])
        values = [p.detach().clone() for p in model.parameters()]
        model.close()
        return values

    first, second = ranks(2, be)
    assert all(map(torch.equal, first, second))


def test_before_attach_a_model_evaluates_saves_and_loads(model, chain, batch):
    model.eval()
    assert torch.equal(model(batch), chain(batch))
    model.train()
    with torch.no_grad():
        assert torch.equal(model(batch), chain(batch))
    model.load_state_dict(model.state_dict())
    model.zero_grad()


@pytest.mark.parametrize(
    "use",
    [
        lambda model, batch: model(batch),
        lambda model, batch: model.synchronize(),
        lambda model, batch: model.clip_grad_norm_(1.0),
        lambda model, batch: model.group_bytes,
        lambda model, batch: model.last_step,
        lambda model, batch: model.no_sync().__enter__(),
    ],
)
def test_training_before_attach_is_refused(model, batch, use):
    with pytest.raises(UsageError) as caught:
        use(model, batch)
    assert str(caught.value) == UNATTACHED


def test_a_second_attach_is_refused(model, chain):
    optimizer = adam(model)
    model.attach(optimizer)
    with pytest.raises(UsageError) as caught:
        model.attach(optimizer)
    assert str(caught.value) == "attach must be called once, with all optimizers, not twice"


def test_an_optimizer_with_foreign_parameters_is_refused(model):
    with pytest.raises(UsageError) as caught:
        model.attach(adam(nn.Linear(2, 3)))
    assert str(caught.value) == "optimizer 0 holds a parameter (3x2) that the model lacks"
    model.attach(adam(model))


def test_an_attach_after_a_backward_is_refused(model, chain, batch):
    chain(batch).sum().backward()
    with pytest.raises(UsageError) as caught:
        model.attach(adam(model))
    assert str(caught.value) == (
        "attach must be called before the first backward, but '0.weight' has a gradient"
    )


def test_a_model_that_was_closed_is_not_attached_again(model):
    model.attach(adam(model))
    model.close()
    with pytest.raises(UsageError, match="must be called once"):
        model.attach(adam(model))
