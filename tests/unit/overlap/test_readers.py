"""Tests that any read of a parameter, a gradient or an optimizer's state gives a finished value."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from slackline.errors import UsageError


def backward(model, batch):
    model(batch).square().sum().backward()


class Pair:
    """A wrapped model whose steps are still due, and a plain model whose steps are done."""

    def __init__(self, wrap, module, batch, make=None):
        make = make or (lambda parameters: torch.optim.Adam(parameters, lr=0.1))
        self.plain = copy.deepcopy(module)
        self.reference = make(self.plain.parameters())
        self.model, self.optimizer, self.group = wrap(module, make(module.parameters()))
        self.module = module
        for net, opt in ((self.model, self.optimizer), (self.plain, self.reference)):
            backward(net, batch)
            opt.step()
        assert self.group.waits == []


@pytest.fixture
def pair(wrap, chain, batch):
    return Pair(wrap, chain, batch)


READERS = {
    "a parameter by name": lambda net: net[1].weight,
    "a parameter by getattr": lambda net: getattr(net[1], "weight"),  # noqa: B009
    "get_parameter": lambda net: net.get_parameter("1.weight"),
    "parameters()": lambda net: list(net.parameters())[2],
    "parameters() of a layer": lambda net: next(iter(net[1].parameters())),
    "named_parameters()": lambda net: dict(net.named_parameters())["1.weight"],
    "state_dict()": lambda net: net.state_dict()["1.weight"],
    "state_dict() of a layer": lambda net: net[1].state_dict()["weight"],
    "a deep copy": lambda net: copy.deepcopy(net)[1].weight,
    "a deep copy of a layer": lambda net: copy.deepcopy(net[1]).weight,
    "a pickle": lambda net: pickle.loads(pickle.dumps(net))[1].weight,
    "the dict itself": lambda net: net[1]._parameters["weight"],
    "the dict's get": lambda net: net[1]._parameters.get("weight"),
    "a plain dict made of the dict": lambda net: dict(net[1]._parameters)["weight"],
    "the dict unpacked": lambda net: {**net[1]._parameters}["weight"],
    "the dict's copy": lambda net: net[1]._parameters.copy()["weight"],
    "a vector of all": lambda net: nn.utils.parameters_to_vector(net.parameters())[20:36],
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_parameter_that_is_read_has_taken_its_step(pair, read):
    assert torch.equal(read(pair.module).flatten(), pair.plain[1].weight.flatten())


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_the_wrapper_gives_the_same_as_the_module(pair, read):
    if read in (READERS["a deep copy"], READERS["a pickle"]):
        with pytest.raises(UsageError, match="instead"):
            read(pair.model)
    else:
        net = pair.model
        chosen = net.module if read(pair.module) is None else net
        assert torch.equal(read(Indexable(chosen)).flatten(), pair.plain[1].weight.flatten())


class Indexable:
    """A wrapper whose layers can be indexed by number, like those of nn.Sequential."""

    def __init__(self, model):
        self._model = model

    def __getitem__(self, index):
        return getattr(self._model, str(index))

    def __getattr__(self, name):
        return getattr(self._model, name)


def test_only_what_is_read_is_waited_for(pair):
    assert pair.module[1].weight is not None
    assert pair.group.waits == [2]


def test_a_reader_of_one_layer_waits_for_that_layer(pair):
    pair.module[1].state_dict()
    assert pair.group.waits == [2, 3]


def test_a_saved_optimizer_is_finished(pair):
    mine, theirs = pair.optimizer.state_dict(), pair.reference.state_dict()
    assert mine["param_groups"] == theirs["param_groups"]
    assert list(mine["state"]) == list(theirs["state"])
    for index, state in theirs["state"].items():
        for name, value in state.items():
            assert torch.equal(mine["state"][index][name], value), name


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_a_copy_of_the_optimizer_is_finished_and_plain(pair, duplicate):
    other = duplicate(pair.optimizer)
    (group,) = other.param_groups
    assert type(group) is dict
    assert "step" not in vars(other)
    for mine, theirs in zip(group["params"], pair.plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert torch.equal(other.state[mine]["exp_avg"], pair.reference.state[theirs]["exp_avg"])


def test_an_optimizer_loads_what_it_saved(pair, batch):
    saved = copy.deepcopy(pair.reference.state_dict())
    pair.optimizer.load_state_dict(copy.deepcopy(saved))
    pair.reference.load_state_dict(saved)
    for net, opt in ((pair.model, pair.optimizer), (pair.plain, pair.reference)):
        opt.zero_grad()
        backward(net, batch)
        opt.step()
    assert torch.equal(pair.module[0].weight, pair.plain[0].weight)
    assert pair.group.tags.count(0) == 2


def test_a_loaded_model_is_not_stepped_afterwards(pair):
    saved = {name: torch.ones_like(value) for name, value in pair.plain.state_dict().items()}
    pair.model.load_state_dict(saved)
    pair.model.synchronize()
    assert all(parameter.eq(1).all() for parameter in pair.model.parameters())


def test_evaluation_sees_the_step(pair, batch):
    pair.model.eval()
    with torch.no_grad():
        assert torch.equal(pair.model(batch), pair.plain(batch))


def test_the_module_behind_the_wrapper_and_its_layers_can_be_called(pair, batch):
    assert torch.equal(pair.module[1](batch), pair.plain[1](batch))
    assert torch.equal(pair.module(batch), pair.plain(batch))


def test_inference_mode_does_not_reach_into_the_optimizer(pair, batch):
    with torch.inference_mode():
        assert torch.equal(pair.model(batch), pair.plain(batch))
    for net, opt in ((pair.model, pair.optimizer), (pair.plain, pair.reference)):
        backward(net, batch)
        opt.step()
    assert torch.equal(pair.module[1].weight, pair.plain[1].weight)


def test_a_gradient_read_after_backward_is_reduced(wrap, manual_group, chain, batch):
    plain = copy.deepcopy(chain)
    backward(plain, batch)
    group = manual_group(size=2, peers=lambda tag, mine: 2 * mine)
    model, _, _ = wrap(chain, group=group, average=False)
    backward(model, batch)
    assert torch.equal(chain[1].weight.grad, 3 * plain[1].weight.grad)
    assert group.waits == [2]


def test_autograd_grad_leaves_the_gradients_alone(wrap, chain, batch):
    plain = copy.deepcopy(chain)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    model, optimizer, _ = wrap(chain, torch.optim.SGD(chain.parameters(), lr=0.1))
    for turn in range(3):
        for net, opt in ((model, optimizer), (plain, reference)):
            backward(net, batch)
            if turn == 1:
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            torch.autograd.grad(net(batch).sum(), list(net.parameters())[:3])
            opt.step()
            torch.autograd.grad(net(batch).sum(), list(net.parameters())[:3])
            assert net.get_parameter("0.weight").grad.any()
            opt.zero_grad()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)


CLIPPERS = {
    "the model's own": lambda model, opt: model.clip_grad_norm_(0.1),
    "torch's on the wrapper": lambda model, opt: nn.utils.clip_grad_norm_(model.parameters(), 0.1),
    "torch's on the module": lambda model, opt: nn.utils.clip_grad_norm_(
        model.module.parameters(), 0.1
    ),
    "torch's on the groups": lambda model, opt: nn.utils.clip_grad_norm_(
        [p for group in opt.param_groups for p in group["params"]], 0.1
    ),
}


@pytest.mark.parametrize("clip", CLIPPERS.values(), ids=CLIPPERS)
def test_clipping_works_on_reduced_gradients(wrap, manual_group, chain, batch, clip):
    plain = copy.deepcopy(chain)
    reference = torch.optim.Adam(plain.parameters(), lr=0.1)
    group = manual_group(size=2, peers=lambda tag, mine: 2 * mine)
    model, optimizer, _ = wrap(
        chain, torch.optim.Adam(chain.parameters(), lr=0.1), group=group, average=False
    )
    for _ in range(3):
        backward(model, batch)
        norm = clip(model, optimizer)
        optimizer.step()
        optimizer.zero_grad()
        backward(plain, batch)
        for parameter in plain.parameters():
            parameter.grad *= 3
        expected = nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        reference.step()
        reference.zero_grad()
        assert torch.equal(norm, expected)
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_gradient_that_the_user_replaced_is_used(wrap, chain, batch):
    plain = copy.deepcopy(chain)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    model, optimizer, _ = wrap(chain, torch.optim.SGD(chain.parameters(), lr=0.1))
    for net, layers, opt in ((model, chain, optimizer), (plain, plain, reference)):
        backward(net, batch)
        layers[0].weight.grad = layers[0].weight.grad.sign()
        layers[1].weight.grad = None
        opt.step()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_parameter_used_by_another_module_is_finished(wrap, batch):
    class Borrower(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return nn.functional.linear(x, self.inner.weight, self.inner.bias)

    torch.manual_seed(0)
    pair = Pair(wrap, Borrower(), batch)
    assert torch.equal(pair.model(batch), pair.plain(batch))


ODD_MODULES = {
    "LSTM": lambda: nn.LSTM(4, 4, 2),
    "attention": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    "a list of parameters": lambda: Listed(),
}


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(4, 4)) for _ in range(2)])
        self.hidden = [nn.Parameter(torch.randn(4, 4))]
        self.visible = self.hidden[0]

    def forward(self, x):
        return x @ self.weights[0] @ self.weights[1] @ self.hidden[0]


@pytest.mark.parametrize("make", ODD_MODULES.values(), ids=ODD_MODULES)
@pytest.mark.parametrize("train", [True, False])
def test_modules_that_read_in_odd_ways_see_finished_values(wrap, batch, make, train):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.odd = make()

        def forward(self, x):
            y = self.odd(x)
            return y[0] if isinstance(y, tuple) else y

    torch.manual_seed(0)
    pair = Pair(wrap, Net(), batch)
    for net in (pair.model, pair.plain):
        net.train(train)
    assert torch.equal(pair.model(batch), pair.plain(batch))
    with torch.no_grad():
        assert torch.equal(pair.model(batch), pair.plain(batch))
    assert torch.equal(copy.deepcopy(pair.module)(batch), pair.plain(batch))
    torch.save(pair.module.state_dict(), io.BytesIO())


def test_a_copy_of_the_module_is_plain(pair, batch):
    for other in (copy.deepcopy(pair.module), pickle.loads(pickle.dumps(pair.module))):
        pair.group.forget()
        backward(other, batch)
        assert type(other[0]._parameters) is dict
        assert pair.group.posts == []


def test_state_dicts_fit_both_ways(pair, chain):
    assert list(pair.model.state_dict()) == list(pair.plain.state_dict())
    assert [n for n, _ in pair.model.named_parameters()] == [
        n for n, _ in pair.plain.named_parameters()
    ]
    pair.model.load_state_dict(pair.plain.state_dict())
    pair.plain.load_state_dict(pair.model.state_dict())


def test_a_wrapped_part_saves_and_loads_within_a_whole(pair):
    whole = nn.ModuleDict({"part": pair.model, "rest": nn.Linear(2, 2)})
    saved = whole.state_dict()
    assert sorted(saved) == sorted(
        [*(f"part.{name}" for name in pair.plain.state_dict()), "rest.weight", "rest.bias"]
    )
    whole.load_state_dict({name: torch.full_like(v, 2) for name, v in saved.items()})
    assert all(parameter.eq(2).all() for parameter in pair.module.parameters())


def test_the_wrapper_lends_the_modules_attributes(wrap, batch):
    class Named(nn.Linear):
        answer = 42

        def twice(self, x):
            return 2 * self(x)

    model, _, _ = wrap(Named(4, 4))
    assert model.answer == 42
    assert torch.equal(model.twice(batch), 2 * model(batch))
    with pytest.raises(AttributeError):
        _ = model.nonsense
