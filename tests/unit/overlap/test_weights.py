"""Losses that are sums, divided once by the sum of all virtual ranks' weights."""

import random

import pytest
import torch
from torch import nn, optim

from slackline.errors import MismatchError, UsageError
from slackline.overlap import DataParallel

LENGTHS = torch.randint(0, 8, (48,), generator=torch.Generator().manual_seed(1))
"""The number of tokens of each sequence; the rest of eight is padding."""
TOKENS = torch.randn(48, 8, 5, generator=torch.Generator().manual_seed(2))


class Net(nn.Module):
    """A model with a parameter that only some virtual ranks use."""

    def __init__(self, dtype):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.first, self.last = (
            nn.Parameter(torch.randn(5, 5, generator=generator)) for _ in range(2)
        )
        self.rare = nn.Parameter(torch.ones(5))
        self.to(dtype)

    def forward(self, x):
        y = torch.relu(x @ self.first) @ self.last
        return y * self.rare if float(x[0, 0, 0].detach()) > 0 else y


OPTIMIZERS = {
    "sgd": lambda parameters: optim.SGD(parameters, lr=0.05, momentum=0.9),
    "fused": lambda parameters: optim.AdamW(parameters, lr=0.01, fused=True),
}


def loss_of(model, chosen, dtype):
    """Return the sum of the losses of all tokens that are not padding, and their number."""
    valid = torch.arange(8) < LENGTHS[chosen].unsqueeze(1)
    each = model(TOKENS[chosen].to(dtype)).square().mean(2)
    return (each * valid).sum(), valid.sum()


def trained(group, virtual_ranks, *, optimizer="sgd", dtype=torch.float32, scaled=False, **options):
    """Train on one rank; return the values of the parameters, and the samples of each part."""
    parts = {}
    model = Net(dtype)
    stepper = OPTIMIZERS[optimizer](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
    with DataParallel(
        model, stepper, process_group=group, virtual_ranks=virtual_ranks, weighted=True, **options
    ) as parallel:
        for step in range(4):
            for part in parallel.parts(step):
                with part:
                    chosen = part.indices(len(TOKENS), batch=virtual_ranks * 4)
                    parts[step, part.number] = chosen
                    loss, part.weight = loss_of(parallel, chosen, dtype)
                    scaler.scale(loss).backward()
            scaler.unscale_(stepper)
            parallel.clip_grad_norm_(0.5)
            scaler.step(stepper)
            scaler.update()
            stepper.zero_grad()
    return [each.detach().clone() for each in model.parameters()], parts


def tree_sum(values):
    if len(values) == 1:
        return values[0]
    half = 1 << ((len(values) - 1).bit_length() - 1)
    return tree_sum(values[:half]) + tree_sum(values[half:])


def bits(tensors):
    return [tensor.reshape(-1).view(torch.uint8).tolist() for tensor in tensors]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_rank_trains_as_plain_torch_that_divides_once(ranks, dtype):
    model = Net(dtype)
    stepper = OPTIMIZERS["sgd"](model.parameters())

    def by_hand():
        for step in range(4):
            grads, weights = [], []
            for number in range(5):
                loss, weight = loss_of(model, parts[step, number], dtype)
                loss.backward()
                weights.append(float(weight))
                grads.append([each.grad for each in model.parameters()])
                stepper.zero_grad()
            for each, values in zip(model.parameters(), zip(*grads, strict=True), strict=True):
                if any(value is not None for value in values):
                    zeros = torch.zeros_like(each)
                    filled = [zeros if value is None else value for value in values]
                    each.grad = tree_sum(filled) / tree_sum(weights)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            stepper.step()
            stepper.zero_grad()
        return list(model.parameters())

    ((values, parts),) = ranks(1, lambda group: trained(group, 5, dtype=dtype))
    assert bits(values) == bits([each.detach() for each in by_hand()])


@pytest.mark.parametrize("seed", range(5))
def test_any_number_of_ranks_has_the_same_bits(ranks, seed):
    draw = random.Random(seed)
    sizes = draw.sample(range(2, 7), 2)
    virtual_ranks = draw.randint(max(sizes), 9)
    options = {
        "optimizer": draw.choice(sorted(OPTIMIZERS)),
        "dtype": draw.choice([torch.float32, torch.float64, torch.bfloat16]),
        "scaled": draw.random() < 0.5,
        "group_bytes": draw.choice([0, 1 << 20]),
    }
    if options["dtype"] is torch.bfloat16:
        options["scaled"] = False
    ((alone, _),) = ranks(1, lambda group: trained(group, virtual_ranks, **options))
    for size in (*sizes, virtual_ranks):
        for values, _ in ranks(size, lambda group: trained(group, virtual_ranks, **options)):
            assert bits(values) == bits(alone), (size, virtual_ranks, options)


def test_gradients_leave_before_the_weights_sum_and_are_divided_when_both_have_come(wrap):
    module = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    model, _, group = wrap(module, optimizer, virtual_ranks=1, weighted=True)
    before = module.weight.detach().clone()
    with next(model.parts(0)) as part:
        part.weight = 8
        (weight,) = group.tags
        model(torch.tensor([[2.0, 4.0]])).sum().backward()
    gradient = group.tags[-1]
    optimizer.step()
    optimizer.zero_grad()
    group.complete(gradient)
    posting = model._gradients.reducers[0]._reductions.in_flight()[0]
    assert not posting.done()
    group.complete(weight)
    assert posting.done()
    assert group.waits == []
    torch.testing.assert_close(module.weight, before - torch.tensor([[0.25, 0.5]]))


def test_a_pending_step_is_divided_by_the_weights_of_its_own_step(wrap):
    module = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    model, _, group = wrap(module, optimizer, virtual_ranks=1, weighted=True)
    before = module.weight.detach().clone()
    for step, weight in enumerate((8, 2)):
        with next(model.parts(step)) as part:
            part.weight = weight  # The step before is still pending.
            group.complete(group.tags[-1])
            model(torch.tensor([[2.0, 4.0]])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(module.weight, before - torch.tensor([[1.25, 2.5]]))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"weighted": 1, "virtual_ranks": 2}, "weighted must be True or False, not 1"),
        ({"weighted": True}, r"needs virtual ranks: DataParallel\(virtual_ranks=8\)"),
        (
            {"weighted": True, "virtual_ranks": 2, "average": False},
            "average must be True, not False",
        ),
    ],
)
def test_wrong_options_are_refused(wrap, options, text):
    with pytest.raises(UsageError, match=text):
        wrap(nn.Linear(2, 2), **options)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "many", torch.ones(2), None])
def test_a_weight_that_is_no_number_from_0_on_is_refused(wrap, value):
    model, _, _ = wrap(nn.Linear(2, 2), virtual_ranks=1, weighted=True)
    with next(model.parts(0)) as part:
        with pytest.raises(UsageError, match="a finite number from 0 on, not"):
            part.weight = value
        part.weight = 1


def test_a_part_without_a_weight_is_refused(wrap):
    model, _, _ = wrap(nn.Linear(2, 2), virtual_ranks=2, weighted=True)
    first = next(model.parts(3))
    with pytest.raises(UsageError, match="virtual rank 0 of step 3 has no weight"), first:
        model(torch.ones(1, 2)).sum().backward()


def test_a_weight_is_set_once_and_within_its_part(wrap):
    model, _, _ = wrap(nn.Linear(2, 2), virtual_ranks=2, weighted=True)
    parts = model.parts(0)
    first = next(parts)
    with pytest.raises(UsageError, match="the weight of virtual rank 0 once, in `with part:`"):
        first.weight = 3
    with first:
        first.weight = 3
        assert first.weight == 3.0
        with pytest.raises(UsageError, match=r"once, in `with part:`, not to 4$"):
            first.weight = 4


def test_a_weight_is_refused_without_weighted(wrap):
    model, _, _ = wrap(nn.Linear(2, 2), virtual_ranks=1)
    part = next(model.parts(0))
    with pytest.raises(UsageError, match=r"needs DataParallel\(weighted=True\)"):
        part.weight = 3


def test_gradients_that_are_read_before_their_weight_is_set_are_refused(wrap):
    model, _, _ = wrap(nn.Linear(2, 2), virtual_ranks=1, weighted=True)
    with next(model.parts(0)) as part:
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(UsageError, match=r"set part\.weight before they are read"):
            _ = model.module.weight.grad
        part.weight = 2


def test_weights_that_add_up_to_0_are_refused(wrap):
    model, optimizer, _ = wrap(nn.Linear(2, 2), virtual_ranks=1, weighted=True)
    with next(model.parts(4)) as part:
        part.weight = 0
        model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    with pytest.raises(UsageError, match="the weights of all virtual ranks of step 4 are 0"):
        model.synchronize()
    model.abandon()


def test_ranks_of_which_one_is_weighted_are_named(ranks):
    def be(group):
        module = nn.Linear(2, 2)
        optimizer = optim.SGD(module.parameters(), lr=0.1)
        DataParallel(
            module, optimizer, process_group=group, virtual_ranks=4, weighted=group.rank == 1
        )

    for error in ranks(2, be, expect=MismatchError):
        assert "weighted=True where rank 0 has" in str(error)
