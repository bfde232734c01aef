"""Tests that data loaders give virtual ranks the same samples on any number of processes, also when
another number of processes goes on from a saved state."""

import os
import random

import pytest
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset, IterableDataset

from slackline.overlap import DataParallel, PartDataset, PartLoaders, PartSampler

STEPS, HALF = 6, 3


class Samples(Dataset):
    """Samples that are equal in every process."""

    def __init__(self):
        generator = torch.Generator().manual_seed(4)
        self.x = torch.randn(40, 6, generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return index, self.x[index]


class Noisy(Samples):
    """The same samples with random noise."""

    def __getitem__(self, index):
        return index, self.x[index] + torch.rand(6) * random.random()


class Stream(IterableDataset):
    """An endless stream that draws random numbers, and can go on from a saved place."""

    def __init__(self, number):
        self.number, self.place = number, 0

    def __iter__(self):
        while True:
            self.place += 1
            yield torch.full((6,), self.number + 1.0) / self.place + torch.rand(6)

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state_dict):
        self.place = state_dict["place"]


class Batches:
    """A loader of a stream whose state is that of the stream."""

    def __init__(self, number):
        self.stream = Stream(number)
        self.state_dict = self.stream.state_dict
        self.load_state_dict = self.stream.load_state_dict

    def __iter__(self):
        return iter(DataLoader(self.stream, batch_size=2))


def train(rank, size):
    kind, path = os.environ["KIND"], os.environ["SAVED"]
    first, last = int(os.environ["FIRST"]), int(os.environ["LAST"])
    torch.set_num_threads(1)
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.2), nn.BatchNorm1d(6), nn.Linear(6, 2))
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    saved = torch.load(path) if first else None
    if saved is not None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    with DataParallel(model, optimizer, virtual_ranks=5, seed=3) as parallel:
        if kind == "stream":
            data = PartLoaders(parallel, Batches)
        else:
            data = PartSampler(parallel, 40, batch=20)
        if saved is not None:
            data.load_state_dict(saved["data"])
        assert data.step == first
        if kind == "workers":
            batches = iter(DataLoader(Samples(), batch_sampler=data, num_workers=2))
        elif kind.startswith("noise"):
            workers = int(kind[-1])
            noisy = PartDataset(Noisy())
            batches = iter(DataLoader(noisy, batch_sampler=data, num_workers=workers))
        for step in range(data.step, last):
            for part in parallel.parts(step):
                with part:
                    if kind == "stream":
                        x = data.next(part)
                    elif kind != "indices":
                        indices, x = next(batches)
                        assert torch.equal(indices, part.indices(40, batch=20))
                    else:
                        x = Samples().x[part.indices(40, batch=20)]
                    parallel(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        states = {"model": parallel.state_dict(), "optimizer": optimizer.state_dict()}
        states["data"] = data.state_dict()
        assert data.step == last
        if rank == 0:
            torch.save(states, path)
        return parallel.hash


@pytest.fixture
def hashes(job, tmp_path):
    """Provide a function that trains some steps and returns the hashes of all ranks."""

    def run(size, kind, first, last):
        given = {"KIND": kind, "SAVED": tmp_path / kind, "FIRST": first, "LAST": last}
        environment = {name: str(value) for name, value in given.items()}
        return {*job(size, train, environment=environment)}

    return run


def test_workers_load_the_samples_of_the_parts_on_any_number_of_processes(hashes):
    (expected,) = hashes(1, "indices", 0, STEPS)
    assert hashes(1, "workers", 0, STEPS) == {expected}
    assert hashes(3, "workers", 0, HALF) != {expected}
    assert hashes(2, "workers", HALF, STEPS) == {expected}


def test_random_transforms_are_those_of_the_part_in_any_worker(hashes):
    (expected,) = hashes(1, "noise0", 0, STEPS)
    assert hashes(2, "noise2", 0, STEPS) == {expected}
    assert hashes(3, "noise1", 0, HALF) != {expected}
    assert hashes(1, "noise1", HALF, STEPS) == {expected}


def test_a_stream_moves_with_its_virtual_rank_to_another_process(hashes):
    (expected,) = hashes(1, "stream", 0, STEPS)
    assert hashes(3, "stream", 0, HALF) != {expected}
    assert hashes(2, "stream", HALF, STEPS) == {expected}
