"""Virtual ranks of a model on an accelerator made of threads have the bits of the CPU."""

import threading
from datetime import timedelta

import pytest
import torch
from torch import nn

from slackline.backend.operations._staging import GroupStaging
from slackline.errors import UsageError
from slackline.overlap import DataParallel
from slackline.overlap._hooked_parts import HookedParts
from slackline.overlap._virtual_ranks import random_numbers
from slackline.overlap.exchange import NodeExchange, Whole
from slackline.overlap.exchange._staged_nodes import StagedNodeExchange
from slackline.plan.collective import even_runs
from slackline.testing import run_ranks
from slackline.testing.thread_device import HostDevice, ThreadDevice

KEYS = 64
LIMIT = timedelta(seconds=20)


def staged(size, virtual_ranks, body, *, device=HostDevice):
    """Run `body(exchange, device)` on each rank; check that nothing stays pinned."""

    def run(group):
        made, staging = device(), GroupStaging()
        exchange = StagedNodeExchange(
            group, KEYS, "", even_runs(virtual_ranks, size), device=made, staging=staging
        )
        try:
            return body(exchange, made)
        finally:
            staging.close()
            exchange.release()
            made.close()
            assert made.pinned == {}

    return run_ranks(size, run, timeout=LIMIT)


def on_host(size, virtual_ranks, body):
    def run(group):
        exchange = NodeExchange(group, KEYS, "", even_runs(virtual_ranks, size))
        try:
            return body(exchange, None)
        finally:
            exchange.release()

    return run_ranks(size, run, timeout=LIMIT)


def bits(tensors):
    return [tensor.reshape(-1).view(torch.uint8).tolist() for tensor in tensors]


def sums(exchange, device):
    """Add the gradients of all virtual ranks, in two steps; return the results of both."""
    flats = exchange.allocate([(50_000, torch.float32), (3, torch.float32), (700, torch.bfloat16)])
    whole = exchange.span(flats[0], flats[1])
    posts = [
        exchange.reduction(0, whole, average=True),
        exchange.reduction(1, flats[2], average=False),
    ]
    found = []
    for step in range(2):
        exchange.begin()
        for number in exchange.run:
            generator = torch.Generator().manual_seed(100 * step + number)
            for flat in flats:
                flat.copy_(torch.randn(flat.shape, generator=generator))
            if number == exchange.run[-1]:
                exchange.expect_last()
                pending = [post(priority) for priority, post in enumerate(posts)]
                for each in pending:
                    each.wait()
                if device is not None:
                    device.synchronize()
            else:
                exchange.fold([*map(Whole, flats)])
        found += [flat.clone() for flat in flats]
    return found


@pytest.mark.parametrize(("size", "virtual_ranks"), [(1, 5), (2, 8), (3, 8), (4, 7)])
def test_sums_have_the_bits_of_one_rank_on_the_host(size, virtual_ranks):
    (expected,) = on_host(1, virtual_ranks, sums)
    for found in staged(size, virtual_ranks, sums, device=ThreadDevice):
        assert bits(found) == bits(expected)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Linear(9, 4)
        self.rare = nn.Parameter(torch.ones(4))

    def forward(self, x):
        y = self.last(torch.relu(self.norm(self.first(x))))
        return y * self.rare if float(x[0, 0]) > 0 else y


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("group_bytes", [0, 1 << 20])
def test_a_model_trains_to_the_same_bits_as_on_the_host(monkeypatch, group_bytes, weighted):
    own = threading.local()
    monkeypatch.setattr(
        "slackline.overlap._data_parallel.open_exchange", lambda *_, **__: own.exchange
    )
    making = threading.Lock()
    data = torch.randn(60, 6, generator=torch.Generator().manual_seed(4))

    def train(exchange, _):
        own.exchange = exchange
        with making:  # The generator of random numbers belongs to all threads.
            torch.manual_seed(1)
            module = Net()
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
        model = DataParallel(
            module,
            optimizer,
            virtual_ranks=exchange.virtual_ranks,
            group_bytes=group_bytes,
            weighted=weighted,
        )
        for step in range(5):
            for part in model.parts(step):
                with part:
                    chosen = part.indices(len(data), batch=20)
                    if weighted:
                        part.weight = 1 + chosen[0]
                    model(data[chosen]).square().sum().backward()
            model.clip_grad_norm_(0.5)
            optimizer.step()
            optimizer.zero_grad()
        model.synchronize()
        tensors = (*module.parameters(), *module.buffers())
        result = [each.detach().clone() for each in tensors]
        model.close()
        return result

    (expected,) = on_host(1, 5, train)
    for size in (1, 2, 3, 5):
        for found in staged(size, 5, train):
            assert bits(found) == bits(expected), size


def test_gradients_outside_of_a_part_are_refused():
    def body(exchange, _):
        (flat,) = exchange.allocate([(3, torch.float32)])
        post = exchange.reduction(0, flat, average=True)
        with pytest.raises(UsageError, match="trained in `with part`"):
            post(0)

    staged(1, 2, body)


def test_models_of_other_wrappers_are_refused_on_a_device():
    module = nn.Linear(2, 2, device="meta")
    with pytest.raises(UsageError, match="'weight' is on meta: the virtual ranks of torch's own"):
        HookedParts(module, (), None, None, virtual_ranks=2, seed=0, exact=True, hash_every=0)


def test_random_numbers_of_devices_depend_on_the_seed_and_are_restored():
    devices = [torch.Generator().manual_seed(5), torch.Generator().manual_seed(6)]
    before = [each.get_state() for each in (torch.default_generator, *devices)]

    def drawn():
        with random_numbers(8, devices):
            return [
                torch.rand(3).tolist(),
                *(torch.rand(3, generator=each).tolist() for each in devices),
            ]

    one = drawn()
    devices[0].manual_seed(7)
    assert drawn() == one
    devices[0].manual_seed(5)
    after = [each.get_state() for each in (torch.default_generator, *devices)]
    assert all(map(torch.equal, before, after))
