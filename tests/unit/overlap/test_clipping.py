"""Tests that the wrapper's own clipping gives torch's bits, and computes norms while reductions
are still under way."""

import copy
import math

import pytest
import torch
from torch import nn, optim
from torch.utils._python_dispatch import TorchDispatchMode

from slackline.overlap import DataParallel

NORM_TYPES = (2.0, 1, 3.5, math.inf)


class Norms(TorchDispatchMode):
    """A mode that appends "norm" to a list when the norm of a gradient is computed."""

    def __init__(self, events):
        super().__init__()
        self._events = events

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "norm" in str(function):
            self._events.append("norm")
        return function(*args, **(kwargs or {}))


def test_norms_are_computed_while_other_gradients_are_under_way(wrap, chain, batch):
    model, _, group = wrap(chain)
    model(batch).square().mean().backward()
    events = group.waits = []
    with Norms(events):
        model.clip_grad_norm_(0.1)
    assert events[: 2 * 6] == [5, "norm", 4, "norm", 3, "norm", 2, "norm", 1, "norm", 0, "norm"]


@pytest.mark.parametrize("group_bytes", [0, 100, 1 << 20])
@pytest.mark.parametrize("norm_type", NORM_TYPES)
def test_gradients_are_clipped_to_the_bits_of_torch(ranks, norm_type, group_bytes):
    torch.manual_seed(3)
    start = nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 3), nn.Linear(3, 1))
    start[2].bias.requires_grad_(False)

    def clip(group, own):
        module = copy.deepcopy(start)
        optimizer = optim.SGD(list(module.parameters())[:-1], lr=0.1)
        model = DataParallel(module, optimizer, process_group=group, group_bytes=group_bytes)
        found = []
        for step in range(4):
            generator = torch.Generator().manual_seed(10 * step + group.rank)
            model(torch.randn(4, 8, generator=generator)).square().mean().backward()
            if own:
                found.append(model.clip_grad_norm_(0.05, norm_type))
            else:
                model.synchronize()
                found.append(nn.utils.clip_grad_norm_(module.parameters(), 0.05, norm_type))
            found += [
                None if each.grad is None else each.grad.clone() for each in module.parameters()
            ]
            optimizer.step()
            optimizer.zero_grad()
        model.close()
        return found

    for mine, torchs in zip(
        ranks(2, lambda group: clip(group, True)),
        ranks(2, lambda group: clip(group, False)),
        strict=True,
    ):
        for a, b in zip(mine, torchs, strict=True):
            assert (a is None) == (b is None)
            assert a is None or torch.equal(a, b)


def test_a_norm_that_is_not_finite_is_torch_s_error(wrap, chain, batch):
    model, _, _ = wrap(chain)
    model(batch * math.inf).square().mean().backward()
    with pytest.raises(RuntimeError, match=r"total norm of order .* non-finite"):
        model.clip_grad_norm_(1.0, error_if_nonfinite=True)
    assert not model.clip_grad_norm_(1.0).isfinite()


def test_without_a_gradient_the_norm_is_zero(wrap, chain):
    model, _, _ = wrap(chain)
    assert model.clip_grad_norm_(1.0) == 0.0


def test_parameters_of_two_types_are_clipped_by_torch(wrap, batch):
    torch.manual_seed(7)
    first, second = nn.Linear(4, 4), nn.Linear(4, 4).double()

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x):
            return self.second(self.first(x).double())

    module = Mixed()
    plain = copy.deepcopy(module)
    model, _, _ = wrap(module)
    for each in (model, plain):
        each(batch).square().mean().backward()
    norm = model.clip_grad_norm_(0.1)
    assert torch.equal(norm, nn.utils.clip_grad_norm_(plain.parameters(), 0.1))
    for mine, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)
