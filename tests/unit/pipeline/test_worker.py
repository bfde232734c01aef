"""Tests that a stage's worker adds every gradient, and tells when one is lost."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from slackline.errors import InternalError, UsageError
from slackline.pipeline import _backward, _gradients
from slackline.pipeline._worker import Worker, check_apart
from slackline.plan.pipeline import Instruction, Kind, Scenario, generate

WIDTH, MICROBATCHES, STAGE = 4, 3, 1


def plan():
    return generate("zb-h1", Scenario.uniform(3, MICROBATCHES))


def worker_of(module, split=None, index=STAGE, microbatches=MICROBATCHES):
    """Return the worker of a stage of three, by default the middle one."""
    stage = SimpleNamespace(
        submod=module,
        stage_index=index,
        num_stages=3,
        device=torch.device("cpu"),
        group=None,
        dw_builder=None,
    )
    return Worker(
        stage, microbatches, loss_fn=None, scale=True, split=split, completed=lambda: None
    )


def inputs(*, needs_grad=True):
    torch.manual_seed(0)
    return [torch.randn(2, WIDTH, requires_grad=needs_grad) for _ in range(MICROBATCHES)]


def step(worker, given, plan, *, order=range(MICROBATCHES)):
    """Run a step as a runner does: all F, then all B in `order`, then all W in `order`."""
    worker.begin(plan, training=True, keeps_outputs=True)
    for microbatch, x in enumerate(given):
        worker.forward(microbatch, (x,), {}, None, training=True)
    for microbatch in order:
        worker.backward(Instruction(STAGE, Kind.B, microbatch), [torch.ones(2, WIDTH)])
    for microbatch in order:
        worker.weights(microbatch)
    worker.complete()
    worker.end()


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))


class Gate(nn.Module):
    """A layer that is used only for microbatches whose first element is positive."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.layer(x) if x[0, 0] > 0 else x


def expected(module, given):
    module.zero_grad()
    for x in given:
        output = module(x.detach())
        if output.requires_grad:
            output.backward(torch.ones(2, WIDTH))
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad.div_(MICROBATCHES)
    found = {name: each.grad for name, each in module.named_parameters()}
    module.zero_grad()
    return found


def check(module, wanted):
    for name, parameter in module.named_parameters():
        assert (parameter.grad is None) == (wanted[name] is None), name
        assert wanted[name] is None or torch.equal(parameter.grad, wanted[name]), name


@pytest.mark.parametrize("needs_grad", [True, False])
@pytest.mark.parametrize("split", [None, False, True])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_a_stage_gets_its_gradients_whether_its_input_needs_one_or_not(needs_grad, split, order):
    module, given = model(), inputs(needs_grad=needs_grad)
    wanted = expected(module, given)
    worker = worker_of(module, split)
    for _ in range(2):
        module.zero_grad()
        step(worker, given, plan(), order=order)
        check(module, wanted)


@pytest.mark.parametrize("off", [0, 1, 2])
@pytest.mark.parametrize("needs_grad", [True, False])
def test_a_microbatch_without_gradients_takes_its_turn(off, needs_grad):
    module, given = Gate(), inputs()
    for microbatch, x in enumerate(given):
        x.data[0, 0] = -1.0 if microbatch == off else 1.0
        x.requires_grad_(needs_grad)
    wanted = expected(module, given)
    step(worker_of(module), given, plan())
    check(module, wanted)


def test_parameters_are_those_that_the_module_has_at_the_beginning_of_a_step():
    module, given = model(), inputs()
    module[0].requires_grad_(False)
    worker, same = worker_of(module), plan()
    step(worker, given, same)
    assert module[0].weight.grad is None
    module[0].requires_grad_(True)
    module[2].load_state_dict(
        {name: each + 1 for name, each in module[2].state_dict().items()}, assign=True
    )
    wanted = expected(module, given)
    step(worker, given, same)
    check(module, wanted)


def losing_a_branch(monkeypatch):
    whole = _backward.Divided.for_weights

    def for_weights(self, *, watch=False):
        self._branches = self._branches[1:]
        whole(self, watch=watch)

    monkeypatch.setattr(_backward.Divided, "for_weights", for_weights)


def test_in_the_first_step_of_a_plan_a_lost_gradient_is_an_error_that_names_it(monkeypatch):
    losing_a_branch(monkeypatch)
    text = (
        r'^stage 1, microbatch 0 of schedule "zb-h1": the gradients of 2.weight, 2.bias were not '
        r"computed, though the microbatch's loss depends on them; "
        r"ScheduleConfig\(split_backward=False\) runs each backward in one piece$"
    )
    with pytest.raises(InternalError, match=text):
        step(worker_of(model()), inputs(), plan())


def losing_an_addition(monkeypatch):
    """Have the gradients of all branches be counted as added, but not added."""
    monkeypatch.setattr(_backward._Branch, "run", lambda self, given, *, watch: False)


@pytest.mark.parametrize("change", ["plan", "parameters", "frozen"])
def test_the_graphs_are_walked_again_after_a_change(monkeypatch, change):
    module, same = model(), plan()
    worker = worker_of(module)
    step(worker, inputs(), same)
    losing_an_addition(monkeypatch)
    step(worker, inputs(), same)
    if change == "parameters":
        module[0].weight = nn.Parameter(module[0].weight.detach().clone())
    elif change == "frozen":
        module[0].bias.requires_grad_(False)
    with pytest.raises(InternalError, match=r"the gradients of 0.weight,.* 2.bias were not"):
        step(worker, inputs(), plan() if change == "plan" else same)


def test_in_every_step_the_number_of_additions_is_compared(monkeypatch):
    module, same = model(), plan()
    worker = worker_of(module)
    step(worker, inputs(), same)
    losing_a_branch(monkeypatch)
    with pytest.raises(InternalError, match=r"the gradients of 2 parameters were not computed"):
        step(worker, inputs(), same)


def test_in_every_step_a_branch_without_its_gradients_is_an_error(monkeypatch):
    module, same = model(), plan()
    worker = worker_of(module)
    step(worker, inputs(), same)
    monkeypatch.setattr(_backward._Branch, "keep", lambda self, gradients: None)
    with pytest.raises(InternalError, match=r"2.weight, 2.bias, 0.weight, 0.bias were not"):
        step(worker, inputs(), same)


def test_in_every_step_a_microbatch_without_a_turn_is_an_error(monkeypatch):
    module, same = model(), plan()
    worker = worker_of(module)
    step(worker, inputs(), same)
    turn = _gradients.Gradients.turn
    monkeypatch.setattr(
        _gradients.Gradients, "turn", lambda self, number: turn(self, number + (number > 1))
    )
    text = "stage 1: the gradients of 2 of 3 microbatches were added"
    with pytest.raises(InternalError, match=text):
        step(worker, inputs(), same)


def test_a_parameter_of_two_stages_of_a_rank_is_refused_unless_it_is_frozen():
    one, other = model(), model()
    other[2].weight = one[0].weight
    workers = [worker_of(one, index=0), worker_of(other, index=2)]
    text = (
        '^parameter "0.weight" of stage 0 is also "2.weight" of stage 2: give one of the stages a '
        "copy, add the copy's gradient to the other's after each step, and copy the values back "
        "after the optimizer's$"
    )
    for worker in workers:
        worker.begin(plan(), training=True, keeps_outputs=True)
    with pytest.raises(UsageError, match=text):
        check_apart(workers)
    one[0].weight.requires_grad_(False)
    for worker in workers:
        worker.begin(plan(), training=True, keeps_outputs=True)
    check_apart(workers)


class Places(nn.Module):
    """Adds a weight for each place, for the microbatch of one number or for all.

    The gradients of the weight and of the input have the same memory in autograd.
    """

    def __init__(self, *, sparse, only=None):
        super().__init__()
        self.table = nn.Embedding(2, WIDTH, sparse=sparse)
        self._only, self._number = only, -1

    def forward(self, x):
        self._number += 1
        if self._only not in (None, self._number):
            return x
        if self.table.sparse:
            return x + self.table(torch.arange(2)[None])
        return x + self.table.weight.unsqueeze(0)


@pytest.mark.parametrize("only", [None, 0, MICROBATCHES - 1])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("split", [False, True])
def test_the_inputs_gradients_have_memory_of_their_own(split, sparse, only):
    # A stage before, on the same rank, gets no copy and may read the gradient after the last W.
    module, ones = Places(sparse=sparse, only=only), torch.ones(1, 2, WIDTH)
    worker, found = worker_of(module, split), []
    worker.begin(plan(), training=True, keeps_outputs=True)
    for microbatch in range(MICROBATCHES):
        x = torch.zeros(1, 2, WIDTH, requires_grad=True)
        worker.forward(microbatch, (x,), {}, None, training=True)
    for microbatch in range(MICROBATCHES):
        found += worker.backward(Instruction(STAGE, Kind.B, microbatch), [ones.clone()])
    for microbatch in range(MICROBATCHES):
        worker.weights(microbatch)
    worker.complete()
    assert all(torch.equal(each, ones) for each in found)
    share = 1.0 if only is None else 1 / MICROBATCHES
    gradient = module.table.weight.grad
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    torch.testing.assert_close(dense, torch.full((2, WIDTH), share))


class ReducedPlaces(Places):
    """Reduces complete gradients in place, while the backward goes on."""

    require_backward_grad_sync = True

    def expect_gradients(self):
        pass

    def complete_gradients(self, parameters):
        for each in parameters:
            if each.grad is not None:
                each.grad.mul_(100)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("microbatches", [1, 3])
def test_a_reduction_within_the_backward_does_not_change_what_the_backward_uses(
    sparse, microbatches
):
    class Deep(ReducedPlaces):
        def forward(self, x):
            return super().forward(2 * x)

    module, ones = Deep(sparse=sparse, only=microbatches - 1), torch.ones(1, 2, WIDTH)
    worker, found = worker_of(module, split=False, microbatches=microbatches), []
    worker.begin(plan(), training=True, keeps_outputs=True)
    for microbatch in range(microbatches):
        x = torch.zeros(1, 2, WIDTH, requires_grad=True)
        worker.forward(microbatch, (x,), {}, None, training=True)
        found += worker.backward(Instruction(STAGE, Kind.B, microbatch), [ones.clone()])
        worker.weights(microbatch)
    worker.complete()
    assert all(torch.equal(each, 2 * ones) for each in found)
    gradient = module.table.weight.grad
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    torch.testing.assert_close(dense, torch.full((2, WIDTH), 100 / microbatches))
