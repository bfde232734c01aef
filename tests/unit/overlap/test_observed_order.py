"""Tests that gradients are placed in memory in the order in which the ranks' first backward passes
produce them."""

import pytest
import torch
from torch import nn, optim

from slackline.overlap import DataParallel
from slackline.overlap.reduction._observed_order import ObservedOrder

PAIR = 2 * (64 + 8 + 2) * 4
"""The bytes of the gradients of two layers, each parameter with an element that states its
presence."""


class Shuffled(nn.Module):
    """A module that uses its layers in another order than it registers them."""

    def __init__(self, order=(2, 0, 3, 1)):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.order = order

    def forward(self, x):
        for number in self.order:
            x = self.layers[number](x).tanh()
        return x


def make(seed=0, **options):
    torch.manual_seed(seed)
    module = Shuffled(**options)
    return module, optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


def backward(model, step):
    generator = torch.Generator().manual_seed(step)
    model(torch.randn(4, 8, generator=generator)).square().mean().backward()


def train(model, optimizer, steps, *, set_to_none=True):
    for step in range(steps):
        backward(model, step)
        optimizer.step()
        optimizer.zero_grad(set_to_none)


def order_of(group, model):
    """Return the layers in their order in memory, by the addresses of their gradients."""
    group.forget()
    places = [layer.weight.grad.data_ptr() for layer in model.module.layers]
    return sorted(range(4), key=lambda number: places[number])


@pytest.mark.parametrize("set_to_none", [True, False])
def test_from_the_third_step_on_gradients_lie_as_the_first_backward_brought_them(
    wrap, manual_group, set_to_none
):
    group = manual_group(size=2)
    module, optimizer = make()
    model, _, _ = wrap(module, optimizer, group, group_bytes=PAIR)
    orders = []
    for step in range(4):
        backward(model, step)
        model.synchronize()
        orders.append(order_of(group, model))
        optimizer.step()
        optimizer.zero_grad(set_to_none)
    registered, observed = [3, 2, 1, 0], [1, 3, 0, 2]
    assert orders == [registered, registered, observed, observed]


def test_a_group_is_posted_as_soon_as_its_layers_have_gradients(wrap, manual_group):
    group = manual_group(size=2)
    module, optimizer = make()
    model, _, _ = wrap(module, optimizer, group, group_bytes=PAIR)
    first, later = [], []
    for posted, steps in ((first, 0), (later, 3)):
        train(model, optimizer, steps)
        group.forget()
        handle = module.layers[0].weight.register_hook(
            lambda _, posted=posted: posted.append(len(group.posts))
        )
        backward(model, 7)
        handle.remove()
        optimizer.step()
        optimizer.zero_grad()
    # The backward pass produces the gradients of layers 1 and 3 before layer 0, and those of layer
    # 2 after it.
    assert (first, later) == ([0], [1])


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_training_has_the_bits_of_plain_torch(wrap, manual_group, set_to_none, accumulate):
    module, optimizer = make()
    model, _, _ = wrap(module, optimizer, manual_group(size=2), group_bytes=PAIR)
    plain, its_optimizer = make()
    for step in range(6):
        for part in range(accumulate):
            backward(model, 10 * step + part)
            backward(plain, 10 * step + part)
        model.synchronize()
        for mine, theirs in zip(module.parameters(), plain.parameters(), strict=True):
            assert torch.equal(mine.grad, theirs.grad)
        for each in (optimizer, its_optimizer):
            each.step()
            each.zero_grad(set_to_none)
    model.synchronize()
    for mine, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_gradient_that_is_kept_over_the_move_is_added_to(wrap, manual_group):
    """Check a gradient that is not cleared between the second and third step: it accumulates as in
    plain torch."""
    module, optimizer = make()
    model, _, _ = wrap(module, optimizer, manual_group(size=2), group_bytes=PAIR)
    plain, its_optimizer = make()
    for step in range(4):
        for each in (model, plain):
            backward(each, step)
        optimizer.step()
        its_optimizer.step()
        if step == 0:
            optimizer.zero_grad()
            its_optimizer.zero_grad()
    model.synchronize()
    for mine, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
        torch.testing.assert_close(mine, theirs)


def test_parameters_each_by_itself_keep_their_places(wrap, manual_group):
    group = manual_group(size=2)
    module, optimizer = make()
    model, _, _ = wrap(module, optimizer, group, group_bytes=0)
    train(model, optimizer, 3)
    backward(model, 3)
    model.synchronize()
    assert order_of(group, model) == [3, 2, 1, 0]


class State:
    def __init__(self, index, block=1, dtype=torch.float32):
        self.index, self.block = index, block
        self.flat = torch.empty(1, dtype=dtype)


def played(averages):
    """Return an observed order of four parameters whose gradients arrive in reverse; `averages` are
    the averages of their places over the ranks."""
    posted = []

    def average(figures):
        posted.append(list(figures))
        return lambda: averages

    return ObservedOrder(average), posted


def test_the_average_of_the_ranks_decides():
    order, posted = played([0.5, 3.0, 0.5, 2.0])
    states = [State(index) for index in range(4)]
    for state in reversed(states[1:]):
        order.note(state)
    assert order.step(states) is None
    assert posted == [[4.0, 2.0, 1.0, 0.0]]
    assert order.step(states) == [states[0], states[2], states[3], states[1]]
    assert order.kept == [0, 2, 3, 1]
    assert order.step(states) is None


def test_allocations_and_types_stay_apart():
    order, _ = played([3.0, 2.0, 1.0, 0.0])
    half = torch.float16
    states = [State(0), State(1, dtype=half), State(2, block=2), State(3)]
    order.step(states)
    assert order.step(states) == [states[1], states[3], states[0], states[2]]


def test_a_step_without_gradients_tells_nothing():
    order, posted = played([2.0, 2.0])
    states = [State(0), State(1)]
    for _ in range(2):
        assert order.step(states) is None
    assert order.observing
    assert order.kept is None
    order.note(states[1])
    assert order.step(states) is None
    assert posted == [[2.0, 2.0], [2.0, 0.0]]


def test_a_given_order_is_used_at_once_and_nothing_is_posted():
    order, posted = played([0.0, 1.0])
    states = [State(0), State(1), State(2)]
    order.keep([2, 0])
    order.note(states[0])
    assert order.step(states) == [states[2], states[0], states[1]]
    assert order.step(states) is None
    assert not posted


def test_a_training_that_goes_on_has_the_order_of_the_one_before(wrap, manual_group):
    group = manual_group(size=3)
    group.rank_ordered = False
    module, optimizer = make()
    model, _, _ = wrap(module, optimizer, group, group_bytes=PAIR)
    train(model, optimizer, 3)
    saved = optimizer.state_dict()
    assert saved["slackline_groups"] == {"bytes": None, "order": [3, 2, 7, 6, 1, 0, 5, 4]}
    model.close()

    group = manual_group(size=3)
    group.rank_ordered = False
    module, optimizer = make(seed=1)
    model, _, _ = wrap(module, optimizer, group, group_bytes=PAIR)
    optimizer.load_state_dict(saved)
    backward(model, 0)
    model.synchronize()
    assert order_of(group, model) == [1, 3, 0, 2]


def test_ranks_that_see_different_orders_move_alike(ranks):
    """Make rank 1 use the layers in another order: the average places of the layers are 1, 1.5, 1.5
    and 2."""

    def rank_main(group):
        own = (2, 0, 3, 1) if group.rank == 0 else (3, 1, 0, 2)
        module, optimizer = make(order=own)
        model = DataParallel(module, optimizer, process_group=group, group_bytes=PAIR)
        train(model, optimizer, 5)
        backward(model, 9)
        model.synchronize()
        places = [layer.weight.grad.data_ptr() for layer in module.layers]
        values = [parameter.detach().clone() for parameter in module.parameters()]
        model.close()
        return sorted(range(4), key=lambda number: places[number]), values

    (order, values), (other, others) = ranks(2, rank_main)
    assert order == other
    assert order[0] == 1
    assert order[3] == 3
    assert all(map(torch.equal, values, others))
