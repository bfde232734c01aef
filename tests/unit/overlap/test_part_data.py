"""Samplers and loaders of virtual ranks: their states, and wrong uses."""

import itertools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from slackline.errors import UsageError
from slackline.overlap import PartDataset, PartLoaders, PartSampler


def step_of(model, step, use):
    for part in model.parts(step):
        with part:
            use(part)


def test_a_sampler_has_the_indices_of_the_parts_in_their_order(wrap):
    model, _, _ = wrap(nn.Linear(2, 2), virtual_ranks=3, seed=7)
    sampler = PartSampler(model, 20, batch=6)
    found = list(itertools.islice(sampler, 12))
    expected = []
    for step in range(4):
        step_of(model, step, lambda part: expected.append(part.indices(20, batch=6).tolist()))
    assert found == expected


def test_a_state_is_that_of_the_parts_and_not_of_batches_fetched_in_advance(wrap):
    model, _, _ = wrap(nn.Linear(2, 2), virtual_ranks=2)
    sampler = PartSampler(model, 20, batch=4)
    batches = iter(DataLoader(torch.arange(20), batch_sampler=sampler))
    step_of(model, 0, lambda part: [next(batches), next(batches), next(batches)])
    facts = {"virtual_ranks": 2, "seed": 0, "length": 20, "batch": 4}
    assert sampler.state_dict() == {"step": 1, **facts}
    sampler.load_state_dict({"step": 9, **facts})
    assert sampler.step == 9
    step_of(model, 9, lambda part: _check(part, next(iter(sampler))))


def _check(part, indices):
    if part.number == 0:
        assert part.indices(20, batch=4).tolist() == indices


@pytest.mark.parametrize("name", ["virtual_ranks", "seed", "length", "batch"])
def test_a_state_of_other_samples_is_refused(wrap, name):
    model, _, _ = wrap(nn.Linear(2, 2), virtual_ranks=2)
    sampler = PartSampler(model, 20, batch=4)
    state = sampler.state_dict()
    mine = state[name]
    state[name] = 6
    with pytest.raises(UsageError, match=f"the saved sampler has {name}=6, this one {name}={mine}"):
        sampler.load_state_dict(state)


def test_a_batch_that_does_not_divide_is_refused_before_the_first_step(wrap):
    model, _, _ = wrap(nn.Linear(2, 2), virtual_ranks=2)
    with pytest.raises(UsageError, match="a multiple of 2 virtual ranks, not 3"):
        PartSampler(model, 20, batch=3)


def test_a_model_without_virtual_ranks_is_refused(wrap):
    model, _, _ = wrap(nn.Linear(2, 2))
    for make in (lambda: PartSampler(model, 20, batch=4), lambda: PartLoaders(model, range)):
        with pytest.raises(UsageError, match=r"no virtual ranks: DataParallel\(virtual_ranks=8\)"):
            make()


def test_a_data_set_of_parts_is_refused_with_another_sampler():
    loader = DataLoader(PartDataset(torch.arange(9)), batch_size=3)
    assert len(loader) == 3
    with pytest.raises(UsageError, match=r"batch_sampler=PartSampler\(...\)"):
        next(iter(loader))


class Counter:
    """A loader that counts, from a place that can be saved."""

    def __init__(self, number):
        self.number, self.place = number, 0

    def __iter__(self):
        while self.place < 4:
            self.place += 1
            yield 10 * self.number + self.place

    def state_dict(self):
        return self.place

    def load_state_dict(self, place):
        self.place = place


def test_each_virtual_rank_has_a_loader_whose_state_can_be_saved(wrap):
    model, _, _ = wrap(nn.Linear(2, 2), virtual_ranks=2)
    loaders, found = PartLoaders(model, Counter), []
    step_of(model, 0, lambda part: found.append(loaders.next(part)))
    state = loaders.state_dict()
    assert state == {"step": 1, "loaders": [1, 1]}
    step_of(model, 1, lambda part: found.append(loaders.next(part)))
    loaders.load_state_dict(state)
    assert loaders.step == 1
    step_of(model, 1, lambda part: found.append(loaders.next(part)))
    assert found == [1, 11, 2, 12, 2, 12]


def test_loaders_change_no_random_numbers_of_the_part(wrap):
    model, _, _ = wrap(nn.Linear(2, 2), virtual_ranks=1)
    drawn = []
    for loader in (None, DataLoader(torch.arange(9), shuffle=True)):
        loaders = PartLoaders(model, lambda _, loader=loader: loader)

        def use(part, loader=loader, loaders=loaders):
            if loader is not None:
                loaders.next(part)
            drawn.append(torch.rand(1).item())

        step_of(model, 0, use)
    assert drawn[0] == drawn[1]


def test_the_end_of_a_loader_is_an_error(wrap):
    model, _, _ = wrap(nn.Linear(2, 2), virtual_ranks=1)
    loaders = PartLoaders(model, lambda _: [1])
    step_of(model, 0, loaders.next)
    with pytest.raises(UsageError, match="virtual rank 0 ended before step 1: let it begin again"):
        step_of(model, 1, loaders.next)


def test_a_loader_without_a_state_cannot_be_saved(wrap):
    model, _, _ = wrap(nn.Linear(2, 2), virtual_ranks=2)
    loaders = PartLoaders(model, lambda _: [1])
    with pytest.raises(UsageError, match="virtual rank 0 is a list without state_dict"):
        loaders.state_dict()


def test_a_state_of_another_number_of_loaders_is_refused(wrap):
    model, _, _ = wrap(nn.Linear(2, 2), virtual_ranks=2)
    loaders = PartLoaders(model, Counter)
    with pytest.raises(UsageError, match="loaders of 3 virtual ranks, not of 2"):
        loaders.load_state_dict({"step": 1, "loaders": [1, 1, 1]})
