"""Tests of the times at which gradients are posted, and of the operations that wait for others."""

import copy

import pytest
import torch
from torch import nn

from slackline.errors import PeerError


def backward(model, batch):
    model(batch).square().sum().backward()


def test_each_gradient_is_posted_when_autograd_has_it(wrap, chain, batch):
    model, _, group = wrap(chain)
    seen = []
    chain[1].register_full_backward_hook(lambda *_: seen.append(list(group.tags)))
    backward(model, batch)
    assert sorted(seen[0]) == [2, 3, 4, 5]
    assert sorted(group.tags) == [0, 1, 2, 3, 4, 5]


def test_a_reduction_carries_one_element_more_than_the_gradient(wrap, chain, batch):
    model, _, group = wrap(chain)
    backward(model, batch)
    assert {tag: count for tag, _, count in group.posts} == {0: 17, 1: 5, 2: 17, 3: 5, 4: 17, 5: 5}


def test_nothing_waits_before_the_next_forward(wrap, chain, batch):
    model, optimizer, group = wrap(chain)
    backward(model, batch)
    optimizer.step()
    optimizer.zero_grad()
    assert group.waits == []


def test_a_forward_waits_layer_by_layer_for_what_it_needs(wrap, chain, batch):
    model, optimizer, group = wrap(chain)
    backward(model, batch)
    optimizer.step()
    seen = []
    for layer in chain:
        layer.register_forward_hook(lambda *_: seen.append(list(group.waits)))
    model(batch)
    assert seen == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5]]


def test_a_forward_waits_for_nothing_that_is_there(wrap, chain, batch):
    model, optimizer, group = wrap(chain)
    backward(model, batch)
    optimizer.step()
    group.complete(0, 1, 4, 5)
    model(batch)
    assert group.waits == [2, 3]


def test_a_step_is_taken_at_once_where_the_sum_is_there(wrap, chain, batch):
    model, optimizer, group = wrap(chain)
    before = [parameter.detach().clone() for parameter in chain.parameters()]
    parameters = list(chain.parameters())
    backward(model, batch)
    group.complete(4, 5)
    optimizer.step()
    with torch._C.DisableTorchFunctionSubclass():  # a read of the list would finish the steps
        changed = [not torch.equal(old, new) for old, new in zip(before, parameters, strict=True)]
    assert changed == [False, False, False, False, True, True]


def test_priorities_are_the_order_of_the_first_forward(wrap, batch):
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(4, 4)
            self.first = nn.Linear(4, 4)
            self.never = nn.Linear(4, 4)

        def forward(self, x):
            return self.last(self.first(x))

    model, optimizer, group = wrap(Backwards())
    for _ in range(2):
        group.forget()
        backward(model, batch)
        optimizer.step()
    priorities = {tag: priority for tag, priority, _ in group.posts}
    assert priorities == {2: 0, 3: 1, 0: 2, 1: 3, 4: 4, 5: 4}


def test_a_buffer_in_flight_is_not_touched(wrap, chain, batch):
    model, optimizer, group = wrap(chain)
    for _ in range(3):
        backward(model, batch)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    model.synchronize()
    assert group.tags.count(0) == 3


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_is_put_off_until_the_gradient_has_been_used(wrap, chain, batch, set_to_none):
    plain = copy.deepcopy(chain)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, group = wrap(chain)
    for _ in range(3):
        for net, opt in ((model, optimizer), (plain, reference)):
            backward(net, batch)
            opt.step()
            opt.zero_grad(set_to_none)
    assert group.waits
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert (mine.grad is None) == set_to_none
        assert set_to_none or not mine.grad.any()


def test_zero_grad_at_the_start_of_the_loop_and_on_the_model_work_too(wrap, chain, batch):
    plain = copy.deepcopy(chain)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, _ = wrap(chain)
    for _ in range(3):
        for net, opt in ((model, optimizer), (plain, reference)):
            net.zero_grad()
            backward(net, batch)
            opt.step()
    assert torch.equal(chain[0].weight, plain[0].weight)


def test_gradients_that_are_never_cleared_add_up(wrap, chain, batch):
    plain = copy.deepcopy(chain)
    reference = torch.optim.SGD(plain.parameters(), lr=0.01)
    model, optimizer, _ = wrap(chain, torch.optim.SGD(chain.parameters(), lr=0.01))
    for _ in range(3):
        for net, opt in ((model, optimizer), (plain, reference)):
            backward(net, batch)
            opt.step()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_a_step_without_a_backward_uses_the_old_gradients(wrap, chain, batch):
    plain = copy.deepcopy(chain)
    reference = torch.optim.SGD(plain.parameters(), lr=0.01)
    model, optimizer, _ = wrap(chain, torch.optim.SGD(chain.parameters(), lr=0.01))
    for net, opt in ((model, optimizer), (plain, reference)):
        backward(net, batch)
        opt.step()
        opt.step()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_within_no_sync_nothing_is_posted_and_the_sums_go_out_after_it(wrap, chain, batch):
    plain = copy.deepcopy(chain)
    model, _, group = wrap(chain)
    with model.no_sync():
        backward(model, batch)
        backward(model, batch)
        assert group.posts == []
    backward(model, batch)
    assert sorted(group.tags) == [0, 1, 2, 3, 4, 5]
    for _ in range(3):
        backward(plain, batch)
    assert torch.equal(chain[0].weight.grad, plain[0].weight.grad)
    assert group.agreements == []


def test_a_step_within_no_sync_still_reduces(wrap, chain, batch):
    model, optimizer, group = wrap(chain)
    with model.no_sync():
        backward(model, batch)
        optimizer.step()
    assert sorted(group.tags) == [0, 1, 2, 3, 4, 5]


def test_two_backwards_before_a_step_are_two_reductions_that_add_up(wrap, chain, batch):
    plain = copy.deepcopy(chain)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    model, optimizer, group = wrap(chain, torch.optim.SGD(chain.parameters(), lr=0.1))
    for net, opt in ((model, optimizer), (plain, reference)):
        backward(net, batch)
        backward(net, 2 * batch)
        opt.step()
    assert sorted(group.tags) == sorted([0, 1, 2, 3, 4, 5] * 2)
    assert group.agreements == [[1] * 6]
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_skipped_step_leaves_no_trace(wrap, chain, batch):
    plain = copy.deepcopy(chain)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    model, optimizer, _ = wrap(chain, torch.optim.SGD(chain.parameters(), lr=0.1))
    backward(model, 5 * batch)
    optimizer.zero_grad()
    for net, opt in ((model, optimizer), (plain, reference)):
        backward(net, batch)
        opt.step()
    assert torch.equal(chain[0].weight, plain[0].weight)


def test_gradients_are_averaged_or_summed(wrap, manual_group, chain, batch):
    plain = copy.deepcopy(chain)
    backward(plain, batch)
    for average, factor in ((True, 2.0), (False, 4.0)):
        group = manual_group(size=2, peers=lambda tag, mine: mine * 3)
        model, _, _ = wrap(copy.deepcopy(chain), group=group, average=average)
        backward(model, batch)
        assert torch.equal(model.module[0].weight.grad, plain[0].weight.grad * factor)


def test_a_failed_reduction_names_the_parameter_where_it_is_needed(wrap, chain, batch):
    model, optimizer, group = wrap(chain)
    backward(model, batch)
    optimizer.step()
    group.complete(0, 1)
    group.transfers[2].error = PeerError("rank 1 has closed the group", peer=1)
    with pytest.raises(PeerError) as caught:
        model(batch)
    assert caught.value.__notes__ == ["while the gradient of '1.weight' was reduced"]
    group.transfers[2].error = None


def test_the_same_run_gives_the_same_bits(wrap, chain, batch):
    results = []
    for delays in ((), (0, 3), (5, 4, 1)):
        net = copy.deepcopy(chain)
        model, optimizer, group = wrap(net, torch.optim.Adam(net.parameters(), lr=0.1))
        for _ in range(3):
            backward(model, batch)
            group.complete(*[tag for tag in range(6) if tag not in delays])
            optimizer.step()
            optimizer.zero_grad()
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_two_models_on_one_group_use_different_tags(wrap, chain, batch):
    model, _, group = wrap(chain)
    other, _, _ = wrap(nn.Linear(4, 4), group=group)
    backward(model, batch)
    backward(other, batch)
    assert len(set(group.tags)) == 8


def test_a_closed_model_is_plain_again(wrap, chain, batch):
    model, optimizer, group = wrap(chain)
    backward(model, batch)
    optimizer.step()
    model.close()
    group.forget()
    assert group.memory == {}
    assert type(chain[0]._parameters) is dict
    assert type(optimizer.param_groups[0]) is dict
    assert "step" not in vars(optimizer)
    gradient = chain[0].weight.grad.clone()
    backward(model, batch)
    optimizer.step()
    model.zero_grad()
    assert gradient.any()
    assert group.posts == []


class Always:
    """A generator of random numbers that are all zero."""

    def random(self):
        return 0.0


def test_a_reduction_may_end_while_a_read_looks_at_it(wrap, chain, batch):
    model, optimizer, group = wrap(chain)
    before = chain[0].weight.detach().clone()
    backward(model, batch)
    optimizer.step()
    group.hurry = Always()  # the read finds the reduction pending, and the sweep finds it done
    assert not torch.equal(model.module[0].weight, before)
    assert group.waits == []


def test_a_model_whose_group_has_died_can_still_be_closed(wrap, chain, batch):
    model, optimizer, group = wrap(chain)
    backward(model, batch)
    optimizer.step()
    group.transfers[2].error = PeerError("rank 1 has closed the group", peer=1)
    with pytest.raises(PeerError):
        model.close()
    assert type(chain[0]._parameters) is dict
    assert "step" not in vars(optimizer)
    backward(model, batch)
    assert group.tags.count(0) == 1
