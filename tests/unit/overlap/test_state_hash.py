"""The hash over a training: every bit counts, and nothing else."""

import copy

import pytest
import torch
from torch import nn, optim

from slackline.errors import UsageError
from slackline.overlap import DataParallel
from slackline.overlap.certificate import state_hash


def trained(steps=2):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(5, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def flip(tensor):
    """Flip the lowest bit of a tensor's first element."""
    tensor.detach().view(-1)[:1].view(torch.uint8)[0] ^= 1


def test_equal_trainings_have_one_hash_and_another_step_has_another():
    one, other = (state_hash(model, [optimizer]) for model, optimizer in (trained(), trained()))
    assert one == other
    assert len(one) == 32
    model, optimizer = trained(3)
    assert state_hash(model, [optimizer]) != one


@pytest.mark.parametrize(
    "part",
    [
        lambda model, optimizer: model[0].weight,
        lambda model, optimizer: model[2].bias,
        lambda model, optimizer: model[1].running_var,
        lambda model, optimizer: model[1].num_batches_tracked,
        lambda model, optimizer: optimizer.state[model[0].bias]["exp_avg_sq"],
        lambda model, optimizer: optimizer.state[model[2].weight]["step"],
    ],
)
def test_one_bit_of_any_part_changes_the_hash(part):
    model, optimizer = trained()
    before = state_hash(model, [optimizer])
    flip(part(model, optimizer))
    assert state_hash(model, [optimizer]) != before
    flip(part(model, optimizer))
    assert state_hash(model, [optimizer]) == before


def test_strides_do_not_count_and_types_do():
    model, _ = trained()
    other = copy.deepcopy(model)
    other[0].weight = nn.Parameter(other[0].weight.detach().t().contiguous().t())
    assert other[0].weight.stride() != model[0].weight.stride()
    assert state_hash(other, []) == state_hash(model, [])
    assert state_hash(other.double(), []) != state_hash(model, [])


def test_a_complex_and_an_empty_tensor_have_hashes():
    module = nn.Module()
    module.wave = nn.Parameter(torch.tensor([1 + 2j]))
    module.none = nn.Parameter(torch.empty(0, 3))
    before = state_hash(module, [])
    with torch.no_grad():
        module.wave += 1j
    assert state_hash(module, []) != before


def test_the_wrapper_has_the_hash_of_its_model(wrap):
    model, optimizer = trained()
    wrapped, _, _ = wrap(model, optimizer)
    assert wrapped.hash == state_hash(model, [optimizer])
    with pytest.raises(UsageError, match="call attach"):
        _ = DataParallel(nn.Linear(2, 2)).hash
