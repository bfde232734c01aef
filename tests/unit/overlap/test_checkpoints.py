"""Tests of checkpoints that DataParallel exchanges with plain models, DDP and torch's tools."""

import copy

import pytest
import torch
from torch import nn, optim
from torch.distributed.checkpoint import state_dict as torch_states

ADAMW = {"lr": 0.05, "weight_decay": 0.1}
OPTIMIZERS = {
    "SGD": lambda net: optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
    "Adam": lambda net: optim.Adam(net.parameters(), lr=0.1),
    "AdamW with groups": lambda net: optim.AdamW(
        [
            {"params": [p for p in net.parameters() if p.dim() > 1], **ADAMW},
            {"params": [p for p in net.parameters() if p.dim() == 1]},
        ],
        lr=0.01,
    ),
}
FORMS = {
    "nested": torch_states.StateDictOptions(),
    "flat": torch_states.StateDictOptions(flatten_optimizer_state_dict=True),
}


class Inner(nn.Module):
    """A model whose child has the name of the wrapper's own attribute."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.module = nn.Linear(4, 4)
        self.tied = self.first
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return self.module(self.first(x).tanh())


def train(model, optimizer, batch, steps=3):
    for _ in range(steps):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def values(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_equal(mine, theirs):
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_run_that_torch_s_state_dicts_resume_is_bit_identical(wrap, batch, make, options):
    module = Inner()
    other = copy.deepcopy(module)
    for parameter in other.parameters():
        nn.init.constant_(parameter, 0.5)
    model, optimizer, _ = wrap(module, make(module))
    train(model, optimizer, batch)
    states = copy.deepcopy(torch_states.get_state_dict(model, optimizer, options=options))
    train(model, optimizer, batch)
    resumed, its_optimizer, _ = wrap(other, make(other))
    torch_states.set_state_dict(
        resumed,
        its_optimizer,
        model_state_dict=states[0],
        optim_state_dict=states[1],
        options=options,
    )
    train(resumed, its_optimizer, batch)
    assert_equal(values(resumed), values(model))


def test_torch_s_state_dicts_name_everything_as_those_of_the_plain_model(wrap, batch):
    module, plain = Inner(), Inner()
    model, optimizer, _ = wrap(module, OPTIMIZERS["Adam"](module))
    reference = OPTIMIZERS["Adam"](plain)
    for net, opt in ((model, optimizer), (plain, reference)):
        train(net, opt, batch, steps=1)
    mine = torch_states.get_state_dict(model, optimizer)
    theirs = torch_states.get_state_dict(plain, reference)
    assert list(mine[0]) == list(theirs[0])
    assert list(mine[1]["state"]) == list(theirs[1]["state"])
    assert mine[1]["param_groups"] == theirs[1]["param_groups"]
    torch_states.set_model_state_dict(plain, mine[0])
    torch_states.set_optimizer_state_dict(plain, reference, mine[1])
    assert_equal(values(plain), values(model))
    part = nn.ModuleDict({"part": model, "rest": nn.Linear(2, 2)})
    names = [f"part.{name}" for name in theirs[0]]
    assert list(torch_states.get_model_state_dict(part))[: len(names)] == names


def filled(net, value, prefix=""):
    state = net.state_dict()
    changed = type(state)((prefix + name, torch.full_like(v, value)) for name, v in state.items())
    changed._metadata = {
        (f"{prefix}{name}" if name else prefix.rstrip(".")): facts
        for name, facts in state._metadata.items()
    }
    return changed


def lone():
    net = nn.Module()
    net.module = nn.Linear(4, 4)
    net.weight = nn.Parameter(torch.zeros(4))
    net.bias = nn.Parameter(torch.zeros(4))
    return net


MODELS = {
    "a chain": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
    "a model with a child named module": Inner,
    "a model whose child named module has names of the model": lone,
}


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_checkpoint_is_loaded_with_and_without_the_prefix_of_ddp(wrap, make, prefix):
    model, _, _ = wrap(make())
    given = filled(model.module, 3, prefix)
    before = list(given), dict(given._metadata)
    assert str(model.load_state_dict(given)) == "<All keys matched successfully>"
    assert (list(given), given._metadata) == before
    assert all(value.eq(3).all() for value in model.state_dict().values())


def test_a_wrapped_part_loads_with_and_without_the_prefix(wrap):
    model, _, _ = wrap(Inner())
    whole = nn.ModuleDict({"part": model, "rest": nn.Linear(2, 2)})
    for value, prefix in ((2, ""), (3, "module.")):
        given = {
            **{f"part.{name}": each for name, each in filled(model.module, value, prefix).items()},
            **{f"rest.{name}": each for name, each in whole["rest"].state_dict().items()},
        }
        whole.load_state_dict(given)
        assert all(each.eq(value).all() for each in model.state_dict().values())


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_strict_load_names_what_is_missing_and_what_is_unexpected(wrap, chain, prefix):
    model, _, _ = wrap(chain)
    given = filled(chain, 3, prefix)
    del given[f"{prefix}1.weight"]
    given[f"{prefix}9.weight"] = torch.zeros(1)
    with pytest.raises(RuntimeError) as caught:
        model.load_state_dict(given)
    assert str(caught.value) == (
        "Error(s) in loading state_dict for Sequential:\n"
        '\tMissing key(s) in state_dict: "1.weight". \n'
        '\tUnexpected key(s) in state_dict: "9.weight". '
    )
    found = model.load_state_dict(given, strict=False)
    assert (found.missing_keys, found.unexpected_keys) == (["1.weight"], ["9.weight"])


def test_a_name_that_is_there_twice_is_not_guessed(wrap, chain):
    model, _, _ = wrap(chain)
    given = {**filled(chain, 3), **filled(chain, 4, "module.")}
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"module\.0\.weight"'):
        model.load_state_dict(given)
