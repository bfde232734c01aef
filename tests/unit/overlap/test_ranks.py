"""Tests with several ranks: agreement, copies, averages, and backward passes that reach different
parameters."""

import copy

import pytest
import torch
from torch import nn, optim

from slackline.errors import MismatchError
from slackline.overlap import DataParallel


def fill(module, seed):
    """Fill the parameters from a generator of their own, because rank threads share torch's
    generator."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data.uniform_(-0.5, 0.5, generator=generator)
    return module


class Branches(nn.Module):
    """A module with a trunk and two branches; the caller selects the branch."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(4, 4)
        self.left = nn.Linear(4, 4)
        self.right = nn.Linear(4, 4)
        self.never = nn.Linear(4, 4)
        fill(self, 0)

    def forward(self, x, branch):
        return getattr(self, branch)(self.trunk(x))


def data(rank, turn, rows=4):
    seed = torch.Generator().manual_seed(1000 * turn + rank)
    return torch.randn(rows, 4, generator=seed)


def values(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def assert_all_equal(results):
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            assert torch.equal(mine, theirs)


def net(seed):
    return fill(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)), seed)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_ranks_follow_the_trajectory_of_one_process_on_the_whole_batch(ranks, size):
    def train(group):
        module = net(group.rank)
        optimizer = optim.AdamW(module.parameters(), lr=0.05)
        model = DataParallel(module, optimizer, process_group=group)
        for turn in range(5):
            model(data(group.rank, turn)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return values(model)

    plain = net(0)
    reference = optim.AdamW(plain.parameters(), lr=0.05)
    for turn in range(5):
        batch = torch.cat([data(rank, turn) for rank in range(size)])
        plain(batch).square().mean().backward()
        reference.step()
        reference.zero_grad()
    results = ranks(size, train)
    assert_all_equal(results)
    for mine, theirs in zip(results[0], values(plain), strict=True):
        # The mean over the batch is added in another order, which changes the last bits. Adam
        # divides by the root of tiny second moments, which amplifies the difference.
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def branch_of(rank, turn):
    return "left" if (rank + turn) % 2 else "right"


@pytest.mark.parametrize("set_to_none", [True, False])
def test_ranks_may_take_different_branches(ranks, set_to_none):
    def train(group):
        module = Branches()
        optimizer = optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        model = DataParallel(module, optimizer, process_group=group)
        for turn in range(4):
            model(data(group.rank, turn), branch_of(group.rank, turn)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none)
        return values(model)

    plain = Branches()
    reference = optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for turn in range(4):
        losses = [
            plain(data(rank, turn), branch_of(rank, turn)).square().sum() / 2 for rank in range(2)
        ]
        sum(losses).backward()
        reference.step()
        reference.zero_grad(set_to_none)
    results = ranks(2, train)
    assert_all_equal(results)
    for mine, theirs in zip(results[0], values(plain), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_parameter_that_no_rank_uses_keeps_no_gradient_and_its_value(ranks):
    def train(group):
        module = Branches()
        optimizer = optim.SGD(module.parameters(), lr=0.1, weight_decay=0.5)
        before = module.never.weight.detach().clone()
        model = DataParallel(module, optimizer, process_group=group)
        model(data(group.rank, 0), branch_of(group.rank, 0)).sum().backward()
        optimizer.step()
        grads = [parameter.grad is None for parameter in model.parameters()]
        return grads, torch.equal(module.never.weight, before)

    for grads, same in ranks(2, train):
        assert grads == [False] * 6 + [True] * 2
        assert same


def test_ranks_may_read_gradients_and_clip_whatever_they_have_used(ranks):
    def train(group):
        module = Branches()
        optimizer = optim.SGD(module.parameters(), lr=0.1)
        model = DataParallel(module, optimizer, process_group=group)
        norms = []
        for turn in range(3):
            model(data(group.rank, turn), branch_of(group.rank, turn)).square().sum().backward()
            if group.rank == 0:
                assert module.left.weight.grad is not None
            norms.append(nn.utils.clip_grad_norm_(module.parameters(), 0.5))
            optimizer.step()
            optimizer.zero_grad()
        return [*norms, *values(model)]

    assert_all_equal(ranks(3, train))


@pytest.mark.parametrize("synchronized", [True, False], ids=["each time", "once"])
def test_several_backwards_may_reach_different_parameters_on_each_rank(ranks, synchronized):
    def train(group):
        module = Branches()
        optimizer = optim.SGD(module.parameters(), lr=0.1)
        model = DataParallel(module, optimizer, process_group=group)
        for turn in range(4):
            for part in range(3):
                model.require_backward_grad_sync = synchronized or part == 2
                branch = branch_of(group.rank, turn) if part < 2 else "left"
                loss = model(data(group.rank, 10 * turn + part), branch).square().sum() / 6
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return values(model)

    plain = Branches()
    reference = optim.SGD(plain.parameters(), lr=0.1)
    for turn in range(4):
        for part in range(3):
            for rank in range(2):
                branch = branch_of(rank, turn) if part < 2 else "left"
                (plain(data(rank, 10 * turn + part), branch).square().sum() / 12).backward()
        reference.step()
        reference.zero_grad()
    results = ranks(2, train)
    assert_all_equal(results)
    for mine, theirs in zip(results[0], values(plain), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_skipped_step_keeps_the_ranks_together(ranks):
    def train(group):
        module = Branches()
        optimizer = optim.SGD(module.parameters(), lr=0.1)
        model = DataParallel(module, optimizer, process_group=group)
        for turn in range(4):
            model(data(group.rank, turn), branch_of(group.rank, turn)).square().sum().backward()
            if turn % 2:
                optimizer.step()
            optimizer.zero_grad()
        return values(model)

    assert_all_equal(ranks(2, train))


def test_parameters_and_buffers_start_as_those_of_rank_0(ranks):
    def start(group):
        torch.manual_seed(group.rank)
        module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        module[0].weight.data = module[0].weight.data.t()
        module[1].running_mean.fill_(group.rank)
        module.register_buffer("strided", torch.full((6,), float(group.rank))[::2])
        module.register_buffer("flags", torch.tensor([group.rank == 0]))
        DataParallel(module, optim.SGD(module.parameters(), lr=0.1), process_group=group)
        buffers = [buffer.clone() for name, buffer in module.named_buffers() if name != "flags"]
        return [*values(module), *buffers, module.flags]

    results = ranks(3, start)
    assert_all_equal(results)
    assert all(flags.all() for *_, flags in results)


@pytest.mark.parametrize("follow", [True, False])
def test_running_statistics_follow_rank_0(ranks, follow):
    def train(group):
        module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        optimizer = optim.SGD(module.parameters(), lr=0.1)
        model = DataParallel(module, optimizer, process_group=group, broadcast_buffers=follow)
        for turn in range(3):
            model(data(group.rank, turn)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        seen = []
        module.register_forward_pre_hook(lambda *_: seen.append(module[1].running_mean.clone()))
        model(data(group.rank, 3))
        model.eval()
        if group.rank == 0:
            model(data(0, 4))
        return seen[0]

    first, second = ranks(2, train)
    assert torch.equal(first, second) == follow


def differing(change):
    def start(group):
        module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        if group.rank == 2:
            module = change(module) or module
        DataParallel(module, optim.SGD(module.parameters(), lr=0.1), process_group=group)

    return start


DIFFERENCES = {
    "shape": (
        lambda m: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)),
        "rank 2 has parameter '0.weight' (float32 4x3, strides (3, 1), optimizer 0) where rank 0 "
        "has parameter '0.weight' (float32 3x3, strides (3, 1), optimizer 0)",
    ),
    "type": (
        lambda m: m.double(),
        "rank 2 has parameter '0.weight' (float64 3x3, strides (3, 1), optimizer 0) where rank 0 "
        "has parameter '0.weight' (float32 3x3, strides (3, 1), optimizer 0)",
    ),
    "frozen": (
        lambda m: m[1].requires_grad_(False) and None,
        "rank 2 has parameter '1.weight' (float32 3, strides (1,), frozen) where rank 0 "
        "has parameter '1.weight' (float32 3, strides (1,), optimizer 0)",
    ),
    "fewer": (
        lambda m: nn.Sequential(m[0]),
        "rank 2 lacks parameter '1.weight' (float32 3, strides (1,), optimizer 0) of rank 0",
    ),
    "more": (
        lambda m: m.register_buffer("zeal", torch.zeros(())),
        "rank 2 has buffer 'zeal' (float32 scalar, strides ()) where rank 0 "
        "has buffer '1.running_mean' (float32 3, strides (1,))",
    ),
}


@pytest.mark.parametrize(("change", "message"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_a_rank_with_another_model_is_named_on_every_rank(ranks, change, message):
    errors = ranks(3, differing(change), expect=MismatchError)
    for rank, error in enumerate(errors):
        assert str(error) == f"the ranks must wrap the same model, but {message}"
        assert (error.rank, error.peer) == (rank, 2)


def test_two_wrapped_models_train_side_by_side(ranks):
    def train(group):
        made = [net(group.rank + shift) for shift in (0, 10)]
        optimizers = [optim.Adam(module.parameters(), lr=0.05) for module in made]
        models = [
            DataParallel(module, optimizer, process_group=group)
            for module, optimizer in zip(made, optimizers, strict=True)
        ]
        for turn in range(4):
            middle = models[0](data(group.rank, turn))
            models[1](middle).square().sum().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        return [value for model in models for value in values(model)]

    plain = [net(0), net(10)]
    references = [optim.Adam(module.parameters(), lr=0.05) for module in plain]
    for turn in range(4):
        for rank in range(2):
            (plain[1](plain[0](data(rank, turn))).square().sum() / 2).backward()
        for reference in references:
            reference.step()
            reference.zero_grad()
    results = ranks(2, train)
    assert_all_equal(results)
    for mine, theirs in zip(results[0], [v for m in plain for v in values(m)], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_an_evaluation_on_one_rank_needs_no_other(ranks):
    def train(group):
        module = nn.Sequential(net(0), nn.BatchNorm1d(4))
        optimizer = optim.SGD(module.parameters(), lr=0.1)
        model = DataParallel(module, optimizer, process_group=group)
        model(data(group.rank, 0)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if group.rank == 1:
            model.eval()
            with torch.no_grad():
                model(data(group.rank, 1))
            copy.deepcopy(model.state_dict())
            model.train()
        model(data(group.rank, 2)).sum().backward()
        optimizer.step()
        return values(model)

    assert_all_equal(ranks(2, train))


class Apart(nn.Module):
    """A module with two branches that share nothing, and a path past both."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, way):
        return x * 1.0 if way == "past" else getattr(self, way)(x)


@pytest.mark.parametrize("group_bytes", [0, 1 << 20])
def test_a_second_backward_may_reach_parameters_on_some_ranks_only(ranks, group_bytes):
    ways = (("left", "left"), ("left", "past"))

    def step(model, rank, turn, scale):
        for number, way in enumerate(ways[rank]):
            x = data(rank, 2 * turn + number).requires_grad_()
            (model(x, way).square().sum() * scale).backward()

    def train(group):
        module = fill(Apart(), 0)
        optimizer = optim.SGD(module.parameters(), lr=0.05)
        model = DataParallel(module, optimizer, process_group=group, group_bytes=group_bytes)
        for turn in range(3):
            step(model, group.rank, turn, 1)
            optimizer.step()
            optimizer.zero_grad()
        return values(model)

    plain = fill(Apart(), 0)
    reference = optim.SGD(plain.parameters(), lr=0.05)
    for turn in range(3):
        for rank in range(2):
            step(plain, rank, turn, 0.5)
        reference.step()
        reference.zero_grad()
    results = ranks(2, train)
    assert_all_equal(results)
    for mine, theirs in zip(results[0], values(plain), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_nested_backwards_of_checkpoints_need_no_agreement(wrap, batch):
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers

        def forward(self, x):
            for layer in self.layers:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=True)
            return x

    model, optimizer, group = wrap(Checkpointed())
    for _ in range(2):
        model(batch.clone().requires_grad_()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert group.agreements == []
