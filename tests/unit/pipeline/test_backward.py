"""Tests of the backward in two parts, whose gradients are those of the whole backward."""

import copy
import gc

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from slackline.pipeline._backward import backward_of, divide, leaves_of

WIDTH = 6


class Scale(torch.autograd.Function):
    """A custom function with a weight, whose backward counts its calls."""

    calls = 0

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        Scale.calls += 1
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0)


class Part(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self._forward = forward

    def forward(self, x):
        return self._forward(self, x)


def doubled(tensor):
    tensor.register_hook(lambda gradient: 2 * gradient)
    return tensor


def plain(part, x):
    return part.second(torch.tanh(part.norm(part.first(x))))


def unused(part, x):
    return part.first(x)


def branches(part, x):
    return torch.tanh(part.first(x)) + part.second(x).exp() * part.scale


def computed(part, x):
    """Use a weight that is computed from two parameters."""
    return nn.functional.linear(x, part.first.weight * part.scale.view(-1, 1))


def hooks(part, x):
    return doubled(part.second(doubled(part.norm(part.first(x)))))


def checkpointed(part, x):
    return part.second(checkpoint(lambda y: part.norm(part.first(y)), x, use_reentrant=False))


def beside(part, x):
    """Return an output that the input does not reach, with weights of its own."""
    return part.first(x), torch.tanh(part.second.weight)


def ignored(part, x):
    return part.first(torch.ones_like(x))


def input_itself(part, x):
    return x, part.first(x)


DIVIDED = [plain, unused, branches, computed, hooks, checkpointed, beside, ignored, input_itself]


def tied(part, x):
    return nn.functional.linear(torch.tanh(part.first(x)), part.first.weight.t())


def used_twice(part, x):
    return part.first(part.second(part.first(x)))


def shared_between_path_and_beside(part, x):
    return part.first(x), part.first.weight.exp()


def custom(part, x):
    return Scale.apply(part.first(x), part.scale)


def reentrant(part, x):
    return checkpoint(lambda y: part.second(part.first(y)), x, use_reentrant=True)


WHOLE = [tied, used_twice, shared_between_path_and_beside, custom, reentrant]


def made(forward):
    torch.manual_seed(3)
    part = Part(forward)
    x = torch.randn(4, WIDTH, requires_grad=True)
    found = part(x)
    outputs = [*found] if isinstance(found, tuple) else [found]
    generator = torch.Generator().manual_seed(4)
    return part, x, outputs, [torch.randn(each.shape, generator=generator) for each in outputs]


def gradients_of(part):
    return {name: each.grad for name, each in part.named_parameters() if each.grad is not None}


def whole(forward):
    part, x, outputs, gradients = made(forward)
    found = backward_of(outputs, gradients, [x])
    return found[0], gradients_of(part)


def same(found, wanted):
    return found.keys() == wanted.keys() and all(
        torch.equal(each, wanted[name]) for name, each in found.items()
    )


@pytest.mark.parametrize("forward", DIVIDED, ids=lambda each: each.__name__)
def test_the_two_parts_give_the_gradients_of_the_whole_backward(forward):
    wanted_input, wanted = whole(forward)
    part, x, outputs, gradients = made(forward)
    divided = divide(outputs, gradients, [x])
    (found,) = divided.for_inputs()
    assert gradients_of(part) == {}
    assert (found is None) == (wanted_input is None)
    assert found is None or torch.equal(found, wanted_input)
    divided.for_weights()
    assert same(gradients_of(part), wanted)
    assert divided.missing == []


@pytest.mark.parametrize("forward", WHOLE, ids=lambda each: each.__name__)
def test_a_graph_that_cannot_be_divided_is_left_whole(forward):
    _, x, outputs, gradients = made(forward)
    assert divide(outputs, gradients, [x]) is None


def test_at_any_price_a_custom_function_computes_its_gradients_in_both_parts():
    wanted_input, wanted = whole(custom)
    part, x, outputs, gradients = made(custom)
    Scale.calls = 0
    divided = divide(outputs, gradients, [x], at_any_price=True)
    assert torch.equal(divided.for_inputs()[0], wanted_input)
    divided.for_weights()
    assert same(gradients_of(part), wanted)
    assert Scale.calls == 2


def test_a_custom_function_that_is_divided_keeps_the_graph_that_its_outputs_no_longer_hold():
    _, wanted = whole(custom)
    part, x, outputs, gradients = made(custom)
    divided = divide(outputs, gradients, [x], at_any_price=True)
    del outputs
    divided.for_inputs()
    gc.collect()
    divided.for_weights()
    assert same(gradients_of(part), wanted)


@pytest.mark.parametrize(
    ("forward", "repeats"), [(plain, False), (hooks, True), (checkpointed, True), (beside, False)]
)
def test_python_code_that_runs_in_both_parts_is_seen(forward, repeats):
    _, wanted = whole(forward)
    part, x, outputs, gradients = made(forward)
    divided = divide(outputs, gradients, [x])
    divided.for_inputs()
    divided.for_weights(watch=True)
    assert divided.repeats == repeats
    assert same(gradients_of(part), wanted)


def test_hooks_of_parameters_run_once_and_are_no_repetition():
    part, x, outputs, gradients = made(plain)
    calls = []
    part.first.weight.register_hook(lambda gradient: calls.append("weight") or 2 * gradient)

    def tripled(bias):
        calls.append("bias")
        bias.grad.mul_(3)

    part.second.bias.register_post_accumulate_grad_hook(tripled)
    divided = divide(outputs, gradients, [x])
    divided.for_inputs()
    assert calls == []
    divided.for_weights(watch=True)
    assert sorted(calls) == ["bias", "weight"]
    assert not divided.repeats
    _, wanted = whole(plain)
    assert torch.equal(part.first.weight.grad, 2 * wanted["first.weight"])
    assert torch.equal(part.second.bias.grad, 3 * wanted["second.bias"])


def test_frozen_weights_leave_nothing_for_the_second_part():
    part, x, _, gradients = made(plain)
    part.requires_grad_(False)
    divided = divide([part(x)], gradients, [x])
    assert not divided.has_weights
    reference = copy.deepcopy(part)
    y = x.detach().requires_grad_()
    reference(y).backward(gradients[0])
    assert torch.equal(divided.for_inputs()[0], y.grad)


def test_leaves_are_all_that_the_graph_adds_to():
    part, x, outputs, _ = made(branches)
    wanted = [x, *part.first.parameters(), *part.second.parameters(), part.scale]
    assert {id(each) for each in leaves_of(outputs).values()} == {id(each) for each in wanted}


@pytest.mark.parametrize("whole", [False, True])
def test_the_inputs_gradient_has_the_strides_with_which_it_was_computed(whole):
    """Kernels add in the order of strides, so other strides would round later sums in another
    way."""
    part, _, _, _ = made(plain)
    x = torch.randn(4, 3, WIDTH).transpose(0, 1).detach().requires_grad_()
    computed = []
    inner = x * 1.0
    inner.register_hook(lambda gradient: computed.append(gradient.stride()))
    output = part(inner)
    gradients = [torch.ones_like(output)]
    found = (
        backward_of([output], gradients, [x])
        if whole
        else divide([output], gradients, [x]).for_inputs()
    )
    assert found[0].stride() == computed[0] != x.stride()
