"""Training with virtual ranks: the same bits on any number of ranks, and those of a fixed tree."""

import copy
import itertools
import random
import threading

import pytest
import torch
from torch import nn, optim

from slackline.bits import Evidence
from slackline.errors import MismatchError, UsageError
from slackline.overlap import DataParallel

SAMPLES = torch.randn(96, 6, generator=torch.Generator().manual_seed(3))


class Net(nn.Module):
    """A model with BatchNorm, tied weights and a parameter that only some samples use."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 6)
        self.last.weight = self.first.weight
        self.rare = nn.Parameter(torch.ones(6))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.to(dtype)

    def forward(self, x):
        y = self.last(torch.relu(self.norm(self.first(x))))
        return y * self.rare if float(x[0, 0].detach()) > 0 else y


SEEDING = threading.Lock()


def new_net(dtype=torch.float32):
    with SEEDING:  # Ranks are threads, and torch has one generator.
        torch.manual_seed(11)
        return Net(dtype)


OPTIMIZERS = {
    "sgd": lambda parameters: optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adamw": lambda parameters: optim.AdamW(parameters, lr=0.01, foreach=True),
    "fused": lambda parameters: optim.AdamW(parameters, lr=0.01, fused=True),
}


def trained(group, virtual_ranks, *, steps=4, optimizer="sgd", dtype=torch.float32, **options):
    """Train on one rank; return the parameters, the buffers and the samples of each part."""
    model = new_net(dtype)
    stepper = OPTIMIZERS[optimizer](model.parameters())
    seen = []
    options.setdefault("group_bytes", 100)
    with DataParallel(
        model, stepper, process_group=group, virtual_ranks=virtual_ranks, seed=5, **options
    ) as parallel:
        for step in range(steps):
            for part in parallel.parts(step):
                with part:
                    chosen = part.indices(len(SAMPLES), batch=virtual_ranks * 4)
                    if not part.probe:
                        seen.append((step, part.number, chosen.tolist()))
                    parallel(SAMPLES[chosen].to(dtype)).square().mean().backward()
            parallel.clip_grad_norm_(0.5)
            stepper.step()
            stepper.zero_grad()
    return [each.detach().clone() for each in (*model.parameters(), *model.buffers())], seen


def tree_sum(values):
    """Return the sum of tensors in the tree over so many leaves."""
    if len(values) == 1:
        return values[0]
    half = 1 << ((len(values) - 1).bit_length() - 1)
    return tree_sum(values[:half]) + tree_sum(values[half:])


def by_hand(virtual_ranks, parts, *, steps=4):
    """Train with SGD in plain torch by the samples of all parts, added in the tree."""
    model = new_net()
    stepper = OPTIMIZERS["sgd"](model.parameters())
    samples = {(step, number): chosen for step, number, chosen in parts}
    parameters = [each for each in model.parameters() if each.requires_grad]
    for step in range(steps):
        before = [each.clone() for each in model.buffers()]
        grads, buffers = [], []
        for number in range(virtual_ranks):
            for buffer, value in zip(model.buffers(), before, strict=True):
                buffer.copy_(value)
            model(SAMPLES[samples[step, number]]).square().mean().backward()
            grads.append([each.grad for each in parameters])
            buffers.append([each.clone() for each in model.buffers()])
            for each in parameters:
                each.grad = None
        for each, values in zip(parameters, zip(*grads, strict=True), strict=True):
            if any(value is not None for value in values):
                zeros = torch.zeros_like(each)
                filled = [zeros if value is None else value for value in values]
                each.grad = tree_sum(filled) / virtual_ranks
        for buffer, values in zip(model.buffers(), zip(*buffers, strict=True), strict=True):
            floats = buffer.is_floating_point()
            buffer.copy_(tree_sum(values) / virtual_ranks if floats else values[0])
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        stepper.step()
        stepper.zero_grad()
    return [each.detach().clone() for each in (*model.parameters(), *model.buffers())]


def bits(tensors):
    return [tensor.reshape(-1).view(torch.uint8).tolist() for tensor in tensors]


@pytest.mark.parametrize("virtual_ranks", [1, 5, 8])
def test_one_rank_trains_as_plain_torch_that_adds_in_the_tree(ranks, virtual_ranks):
    ((values, seen),) = ranks(1, lambda group: trained(group, virtual_ranks))
    assert bits(values) == bits(by_hand(virtual_ranks, seen))


@pytest.mark.parametrize("seed", range(6))
def test_any_number_of_ranks_has_the_same_bits(ranks, tmp_path, seed):
    draw = random.Random(seed)
    sizes = draw.sample(range(2, 7), 2)
    virtual_ranks = draw.randint(max(sizes), 12)
    optimizer = draw.choice(sorted(OPTIMIZERS))
    dtype = draw.choice([torch.float32, torch.float64, torch.bfloat16])
    average, each = draw.random() < 0.5, draw.choice([0, 100, 1 << 20])
    every = draw.choice([1, 1, 2, 3])

    def run(group):
        return trained(
            group,
            virtual_ranks,
            optimizer=optimizer,
            dtype=dtype,
            average=average,
            group_bytes=each,
            hash_every=every,
            telemetry=tmp_path / str(group.size),
        )

    ((alone, parts),) = ranks(1, run)
    for size in sizes:
        results = ranks(size, run)
        for values, _ in results:
            assert bits(values) == bits(alone), (size, virtual_ranks, optimizer, dtype)
        # Each part was computed once, with the samples that one rank takes.
        assert sorted(part for _, seen in results for part in seen) == parts
        one, other = (Evidence(tmp_path / str(each), pytest.fail) for each in (1, size))
        assert one.hashes == other.hashes
        assert one.hashes.keys() == {*range(every - 1, 4, every), 3}


def test_an_epoch_has_each_sample_once_and_epochs_have_other_orders(ranks):
    def run(group):
        model = new_net()
        stepper = OPTIMIZERS["sgd"](model.parameters())
        epochs = []
        with DataParallel(model, stepper, process_group=group, virtual_ranks=4) as parallel:
            for epoch in range(2):
                epochs.append([])
                for step in range(3 * epoch, 3 * epoch + 3):
                    for part in parallel.parts(step):
                        with part:
                            epochs[-1] += part.indices(96, batch=32).tolist()
        return epochs

    ((one, other),) = ranks(1, run)
    assert sorted(one) == sorted(other) == list(range(96))
    assert one != other


def test_random_numbers_depend_on_the_part_alone_and_are_restored(wrap):
    torch.manual_seed(1)
    model, optimizer, _ = wrap(nn.Linear(2, 2), virtual_ranks=2, seed=9)
    before = torch.get_rng_state()
    drawn = {}
    for step in (0, 1, 0):
        for part in model.parts(step):
            with part:
                drawn.setdefault((step, part.number), []).append(torch.rand(3).tolist())
        optimizer.zero_grad()
    assert torch.equal(torch.get_rng_state(), before)
    assert drawn[0, 0][0] == drawn[0, 0][1]
    assert len({tuple(each[0]) for each in drawn.values()}) == 4


def test_parts_are_refused_without_virtual_ranks(wrap):
    model, _, _ = wrap(nn.Linear(2, 2))
    with pytest.raises(UsageError, match=r"DataParallel\(virtual_ranks=8\)"):
        model.parts(0)


def test_a_backward_outside_of_a_part_is_refused(wrap):
    model, _, _ = wrap(nn.Linear(2, 2), virtual_ranks=2)
    with pytest.raises(UsageError, match="trained in `with part`"):
        model(torch.ones(1, 2)).sum().backward()
    model.abandon()


def test_wrong_uses_of_parts_are_refused(wrap):
    model, _, _ = wrap(nn.Linear(2, 2), virtual_ranks=2)
    with pytest.raises(UsageError, match="step must be a whole number from 0 on, not -1"):
        next(model.parts(-1))
    parts = model.parts(3)
    first = next(parts)
    with pytest.raises(UsageError, match="virtual rank 0 of step 3 was not used"):
        next(parts)
    parts = model.parts(3)
    first = next(parts)
    with first:
        pass
    with pytest.raises(UsageError, match="virtual rank 0 of step 3 was entered twice"):
        first.__enter__()
    second = next(parts)
    for batch, text in ((3, "a multiple of 2 virtual ranks, not 3"), (8, "at most the 6 samples")):
        with pytest.raises(UsageError, match=text):
            second.indices(6, batch=batch)


def test_gradients_left_from_the_step_before_are_refused(wrap):
    model, optimizer, _ = wrap(nn.Linear(2, 2), virtual_ranks=2)
    for part in model.parts(0):
        with part:
            model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    parts = model.parts(1)
    with pytest.raises(UsageError, match="call zero_grad"), next(parts):
        model(torch.ones(1, 2)).sum().backward()


def test_several_backwards_of_the_last_part_are_refused(wrap):
    model, _, _ = wrap(nn.Linear(2, 2), virtual_ranks=1)
    part = next(model.parts(0))

    def twice():
        with part:
            for _ in range(2):
                model(torch.ones(1, 2)).sum().backward()

    with pytest.raises(UsageError, match="call backward once"):
        twice()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"virtual_ranks": 0}, "a positive whole number, not 0"),
        ({"virtual_ranks": 2.0}, r"a positive whole number, not 2\.0"),
        ({"virtual_ranks": 2, "seed": 0.5}, "seed must be a whole number, not 0.5"),
        ({"virtual_ranks": 2, "communicate": torch.bfloat16}, "leave communicate out"),
    ],
)
def test_wrong_options_are_refused(wrap, options, text):
    with pytest.raises(UsageError, match=text):
        wrap(nn.Linear(2, 2), **options)


def test_synchronized_batch_norm_is_refused(wrap):
    with pytest.raises(UsageError, match="'1' is a SyncBatchNorm"):
        wrap(nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)), virtual_ranks=2)


def test_fewer_virtual_ranks_than_ranks_are_refused(ranks, chain):
    def be(group):
        module = copy.deepcopy(chain)
        optimizer = optim.SGD(module.parameters(), lr=0.1)
        DataParallel(module, optimizer, process_group=group, virtual_ranks=2)

    for error in ranks(3, be, expect=UsageError):
        assert "at least the number of ranks (3), not 2" in str(error)


def test_ranks_with_other_seeds_are_named(ranks, chain):
    def be(group):
        module = copy.deepcopy(chain)
        optimizer = optim.SGD(module.parameters(), lr=0.1)
        DataParallel(
            module, optimizer, process_group=group, virtual_ranks=4, seed=int(group.rank == 1)
        )

    for error in ranks(2, be, expect=MismatchError):
        assert "rank 1 has communicate=None, virtual_ranks=4, seed=1" in str(error)


@pytest.mark.parametrize(("virtual_ranks", "most"), [(1, 0), (2, 1), (5, 2), (8, 3), (33, 5)])
def test_a_rank_keeps_at_most_one_waiting_sum_for_each_level(wrap, virtual_ranks, most):
    model, _, group = wrap(nn.Linear(2, 2), virtual_ranks=virtual_ranks)
    for part in model.parts(0):
        with part:
            model(torch.ones(1, 2)).sum().backward()
    assert len(group.memory) == 1 + most


def test_the_wait_for_the_averages_of_buffers_is_exposed_time(wrap):
    model, optimizer, group = wrap(
        nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), virtual_ranks=1
    )
    times = itertools.count(0, 1_000_000)
    model._recorder.clock = lambda: next(times)
    with next(model.parts(0)):
        model(torch.ones(3, 2)).sum().backward()
        group.immediate = True
        before = model._recorder._open.exposed_ns
    assert model._recorder._open.exposed_ns > before
    optimizer.step()
