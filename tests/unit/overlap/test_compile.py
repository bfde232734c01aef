"""Tests of compiled modules, whose code must not read unfinished parameters."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo import compiled_autograd, config

from slackline.errors import UsageError
from slackline.overlap.reduction._hooks import STEADY_STEPS


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(module):
    return torch.compile(module, backend="eager")


def first_layer_compiled(net):
    net[0] = compiled(net[0])
    return net


def compiled_in_place(net):
    net.compile(backend="eager")
    return net


BEFORE = {
    "torch.compile": compiled,
    "torch.compile of a layer": first_layer_compiled,
    "compile()": compiled_in_place,
}
AFTER = {
    "compile()": lambda model: model.compile(backend="eager"),
    "compile() of the module": lambda model: model.module.compile(backend="eager"),
    "compile() of a layer": lambda model: model.module[0].compile(backend="eager"),
}


def assert_same_run(run, model, optimizer, plain, reference, batch):
    for _ in range(4):
        mine, theirs = run(batch), plain(batch)
        torch.testing.assert_close(mine, theirs)
        for output, opt in ((mine, optimizer), (theirs, reference)):
            output.square().sum().backward()
            opt.step()
            opt.zero_grad()


def pair(chain):
    plain = copy.deepcopy(chain)
    return plain, *(torch.optim.Adam(net.parameters(), lr=0.1) for net in (chain, plain))


@pytest.mark.parametrize("prepare", BEFORE.values(), ids=BEFORE)
def test_a_module_may_be_compiled_and_then_wrapped(wrap, chain, batch, prepare):
    plain, optimizer, reference = pair(chain)
    model, _, group = wrap(prepare(chain), optimizer)
    assert_same_run(model, model, optimizer, plain, reference, batch)
    assert group.waits


@pytest.mark.parametrize("prepare", AFTER.values(), ids=AFTER)
def test_a_module_may_be_compiled_in_place_after_the_wrapping(wrap, chain, batch, prepare):
    plain, optimizer, reference = pair(chain)
    model, _, group = wrap(chain, optimizer)
    prepare(model)
    assert_same_run(model, model, optimizer, plain, reference, batch)
    assert group.waits


def test_compiled_code_that_goes_round_the_wrapper_sees_finished_values(wrap, chain, batch):
    plain, optimizer, reference = pair(chain)
    model, _, group = wrap(chain, optimizer)
    assert_same_run(compiled(chain), model, optimizer, plain, reference, batch)
    assert group.waits


def test_the_wrapper_itself_is_not_to_be_compiled(wrap, chain, batch):
    model, _, _ = wrap(chain)
    with pytest.raises(UsageError) as caught:
        compiled(model)(batch)
    assert str(caught.value) == "compile the module and then wrap it, not the other way round"


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit.trace.* is deprecated:FutureWarning")
def test_a_scripted_module_is_finished_before_it_runs(wrap, batch):
    scripted = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    plain = copy.deepcopy(scripted)
    scripted[0] = torch.jit.trace(scripted[0], batch)
    optimizer = torch.optim.Adam(scripted.parameters(), lr=0.1)
    reference = torch.optim.Adam(plain.parameters(), lr=0.1)
    model, _, group = wrap(scripted, optimizer)
    assert_same_run(model, model, optimizer, plain, reference, batch)
    assert group.waits


def eagerly(graph):
    return torch.compile(graph, backend="eager")


def in_a_region(model, batch):
    loss = model(batch).square().sum()
    with compiled_autograd._enable(eagerly):
        loss.backward()


def in_compiled_code(model, batch):
    with config.patch(compiled_autograd=True):
        torch.compile(lambda loss: loss.backward(), backend="eager")(model(batch).square().sum())


def beside_the_forward(model, batch):
    penalty = sum(parameter.square().sum() for parameter in model.parameters())
    with compiled_autograd._enable(eagerly):
        penalty.backward()


def within_no_sync(model, batch):
    with model.no_sync():
        in_a_region(model, batch)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own
@pytest.mark.parametrize(
    ("backward", "group_bytes", "steps"),
    [
        (in_a_region, 1 << 20, STEADY_STEPS + 1),
        pytest.param(in_compiled_code, 0, 0, marks=pytest.mark.slow),
        pytest.param(beside_the_forward, 1 << 20, STEADY_STEPS + 1, marks=pytest.mark.slow),
        pytest.param(within_no_sync, 0, 0, marks=pytest.mark.slow),
    ],
)
def test_compiled_autograd_is_refused_before_it_computes_a_gradient(
    wrap, chain, batch, backward, group_bytes, steps
):
    plain, optimizer, reference = pair(chain)
    model, _, group = wrap(chain, optimizer, group_bytes=group_bytes)
    for _ in range(steps):
        assert_one_step(model, optimizer, plain, reference, batch)
    group.forget()
    with pytest.raises(UsageError) as caught:
        backward(model, batch)
    assert str(caught.value) == (
        "compiled autograd must be off for the backward of a model in "
        "slackline.overlap.DataParallel, whose hooks reduce gradients; compile the module alone"
    )
    assert group.posts == []
    model.zero_grad()
    assert_one_step(model, optimizer, plain, reference, batch)


def assert_one_step(model, optimizer, plain, reference, batch):
    for net, opt in ((model, optimizer), (plain, reference)):
        net(batch).square().sum().backward()
        opt.step()
        opt.zero_grad()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)
