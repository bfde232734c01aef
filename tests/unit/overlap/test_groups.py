"""Tests of gradients that are reduced together in groups."""

import copy

import pytest
import torch
from torch import nn, optim

from slackline.errors import PeerError, UsageError
from slackline.nic import Kind
from slackline.overlap import DataParallel

LAYER_BYTES = 17 * 4 + 5 * 4
"""The bytes of a layer of `chain`: weight and bias, each with an element that states its
presence."""
LINE = 16
"""The number of elements in 64 bytes, to which each gradient's memory is rounded up."""


def backward(model, batch):
    model(batch).square().sum().backward()


def test_neighbours_in_backward_order_are_one_reduction(wrap, chain, batch):
    model, _, group = wrap(chain, group_bytes=LAYER_BYTES)
    backward(model, batch)
    # The bias comes before the weight, and each begins on a cache line of its own.
    assert [(tag, count) for tag, _, count in group.posts] == [
        (tag, LINE + 17) for tag in (5, 3, 1)
    ]


def test_a_gradient_that_is_too_long_stands_alone(wrap, chain, batch):
    model, _, group = wrap(chain, group_bytes=17 * 4 - 1)
    backward(model, batch)
    assert [count for _, _, count in group.posts] == [5, 17] * 3


def test_all_of_one_type_may_be_one_group(wrap, batch):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).double()
    module[0].float()
    module[0].register_forward_pre_hook(lambda _, given: (given[0].float(),))
    module[0].register_forward_hook(lambda _, __, made: made.double())
    model, _, group = wrap(module, group_bytes=1 << 20)
    backward(model, batch)
    assert [(tag, count) for tag, _, count in group.posts] == [(3, 8 + 17), (1, 16 + 17)]


def test_a_group_is_posted_when_its_last_gradient_has_come(wrap, chain, batch):
    model, _, group = wrap(chain, group_bytes=2 * LAYER_BYTES)
    seen = []
    chain[1].register_full_backward_hook(lambda *_: seen.append(list(group.tags)))
    backward(model, batch)
    assert seen == [[5]]
    assert group.tags == [5, 1]


def test_the_first_member_that_is_read_waits_for_all_and_all_step_at_once(wrap, chain, batch):
    model, optimizer, group = wrap(chain, group_bytes=1 << 20)
    calls = []
    inner = type(optimizer).step
    before = [parameter.detach().clone() for parameter in chain.parameters()]
    backward(model, batch)
    optimizer.step()
    assert group.waits == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(optimizer), "step", lambda self: (calls.append(1), inner(self)))
        model(batch)
    assert group.waits == [5]
    assert calls == [1]
    for old, new in zip(before, chain.parameters(), strict=True):
        assert not torch.equal(old, new)


def test_a_group_is_as_urgent_as_its_most_urgent_member(wrap, chain, batch):
    model, optimizer, group = wrap(chain, group_bytes=2 * LAYER_BYTES)
    for _ in range(2):
        group.forget()
        backward(model, batch)
        optimizer.step()
    assert [(tag, priority) for tag, priority, _ in group.posts] == [(5, 2), (1, 0)]


@pytest.mark.parametrize("group_bytes", [0, LAYER_BYTES, 1 << 20])
def test_parameters_have_the_same_bits_whatever_the_groups(ranks, group_bytes):
    torch.manual_seed(3)
    start = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))

    def train(group, group_bytes):
        module = copy.deepcopy(start)
        optimizer = optim.AdamW(module.parameters(), lr=0.05)
        model = DataParallel(module, optimizer, process_group=group, group_bytes=group_bytes)
        for turn in range(4):
            seed = torch.Generator().manual_seed(100 * turn + group.rank)
            backward(model, torch.randn(3, 4, generator=seed))
            optimizer.step()
            optimizer.zero_grad()
        model.synchronize()
        return [parameter.detach().clone() for parameter in module.parameters()]

    alone = ranks(2, lambda group: train(group, 0))[0]
    for mine in ranks(2, lambda group: train(group, group_bytes)):
        assert all(torch.equal(a, b) for a, b in zip(mine, alone, strict=True))


def test_a_member_that_nobody_uses_has_no_gradient_and_takes_no_step(wrap, chain, batch):
    chain.never = nn.Linear(4, 4)
    module = nn.ModuleDict({"used": chain[0], "never": chain.never})
    before = module["never"].weight.detach().clone()
    optimizer = optim.SGD(module.parameters(), lr=0.1, weight_decay=0.5)
    model, optimizer, group = wrap(module, optimizer, group_bytes=1 << 20)
    module["used"](batch).sum().backward()
    assert group.posts == []
    optimizer.step()
    assert group.tags == [3]
    model.synchronize()
    assert module["never"].weight.grad is None
    assert module["used"].weight.grad is not None
    assert torch.equal(module["never"].weight, before)


def test_a_frozen_member_does_not_hold_its_group_back_and_keeps_its_gradient(wrap, chain, batch):
    model, optimizer, group = wrap(chain, group_bytes=1 << 20)
    backward(model, batch)
    model.synchronize()
    optimizer.step()
    optimizer.zero_grad()
    chain[1].weight.requires_grad_(False)
    chain[1].weight.grad = kept = torch.ones(4, 4)
    group.forget()
    backward(model, batch)
    assert group.tags == [5]
    model.synchronize()
    assert chain[1].weight.grad is kept
    assert torch.equal(kept, torch.ones(4, 4))


def test_a_second_backward_is_reduced_gradient_by_gradient(wrap, chain, batch):
    plain = copy.deepcopy(chain)
    model, _, group = wrap(chain, group_bytes=1 << 20)
    for net in (model, plain):
        backward(net, batch)
        backward(net, 2 * batch)
    group.forget()
    model.synchronize()
    assert [(tag, count) for tag, _, count in group.posts] == [
        (5, 5),
        (4, 17),
        (3, 5),
        (2, 17),
        (1, 5),
        (0, 17),
    ]
    for mine, theirs in zip(chain.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_a_failure_names_the_members(wrap, chain, batch):
    model, optimizer, group = wrap(chain, group_bytes=LAYER_BYTES)
    backward(model, batch)
    group.transfers[1].error = PeerError("gone", rank=0, peer=1)
    with pytest.raises(PeerError) as caught:
        model.synchronize()
    assert caught.value.__notes__ == ["while the gradients of '0.bias' and 1 more were reduced"]
    group.transfers[1].error = None
    optimizer.zero_grad()


@pytest.mark.parametrize("wrong", [-1, 1.5, "1MiB"])
def test_what_is_no_number_of_bytes_is_refused(chain, manual_group, wrong):
    optimizer = optim.SGD(chain.parameters(), lr=0.1)
    with pytest.raises(UsageError, match=f"group_bytes must be .* not {wrong!r}"):
        DataParallel(chain, optimizer, process_group=manual_group(), group_bytes=wrong)


@pytest.mark.parametrize("group_bytes", [0, 1 << 20])
def test_a_gradient_that_is_written_to_in_flight_is_named(wrap, chain, batch, group_bytes):
    model, optimizer, group = wrap(chain, group_bytes=group_bytes)
    backward(model, batch)
    kept = chain[1].weight.grad  # the group's memory, which the program keeps
    optimizer.zero_grad(set_to_none=False)
    backward(model, batch)
    group.complete()  # no thread here has noticed that yet
    kept.mul_(0.5)
    said = "^the gradient of '1.weight' was written to while it was being reduced: "
    with pytest.raises(UsageError, match=said):
        model.synchronize()
    optimizer.zero_grad()


def test_a_hook_that_came_after_wrapping_and_writes_is_named(wrap, chain, batch):
    def halve(parameter):
        parameter.grad.mul_(0.5)

    model, optimizer, group = wrap(chain)
    group.immediate = True
    handle = chain[0].bias.register_post_accumulate_grad_hook(halve)
    backward(model, batch)
    with pytest.raises(UsageError, match=r"^the gradient of '0\.bias' was written to"):
        optimizer.step()
    handle.remove()


class Gates(nn.Module):
    """A module of layers; each forward pass uses a given selection of them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x, used):
        for number in used:
            x = self.layers[number](x)
        return x


def test_what_no_rank_uses_is_reduced_apart_from_what_all_use(wrap, batch):
    model, optimizer, group = wrap(Gates(), group_bytes=1 << 20)
    before_step = []
    for _ in range(4):
        group.forget()
        model(batch, (0, 3)).square().sum().backward()
        before_step.append(group.tags)
        optimizer.step()
        optimizer.zero_grad()
        posted = group.tags
    # At first all gradients form one group, which waits until `step` for the unused ones.
    assert before_step == [[], [], [7, 1], [7, 1]]
    assert posted == [7, 1, 5]


def test_what_some_ranks_use_stands_alone_on_all_of_them(ranks):
    start = Gates()  # created here, because the rank threads share torch's random numbers

    def train(group, group_bytes):
        net = copy.deepcopy(start)
        optimizer = optim.SGD(net.parameters(), lr=0.001, momentum=0.9)
        batches = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(group.rank))
        before_step = []
        begin, tags = group.begin, []

        def noted(operation, *how):
            if operation.kind is Kind.ALL_REDUCE:
                tags.append(operation.tag)
            return begin(operation, *how)

        group.begin = noted
        with DataParallel(
            net, optimizer, process_group=group, group_bytes=group_bytes, average=False
        ) as model:
            for step, inputs in enumerate(batches):
                tags.clear()
                # Only rank 1 uses the second layer, and from the fourth step on no rank does.
                used = (0, 1, 2, 3) if group.rank == 1 and step < 3 else (0, 2, 3)
                model(inputs, used).square().sum().backward()
                before_step.append(len(tags))
                optimizer.step()
                optimizer.zero_grad()
            model.synchronize()
        return [parameter.detach().clone() for parameter in net.parameters()], before_step

    together = ranks(3, lambda group: train(group, 1 << 20))
    apart = ranks(3, lambda group: train(group, 0))
    for mine, _ in together:
        for one, other in zip(mine, apart[0][0], strict=True):
            torch.testing.assert_close(one, other)
    # From the third step on, gradients that two of three ranks lack are placed behind the others.
    # The others are sent during the backward pass; rank 1 also sends its own two parameters then.
    assert [posts for _, posts in together] == [
        [0, 0, 1, 1, 1, 1],
        [1, 1, 3, 1, 1, 1],
        [0, 0, 1, 1, 1, 1],
    ]
