"""Tests of programs that read parameters through lists that they made before, not by the module."""

import copy
import logging
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from slackline.errors import UsageError
from slackline.overlap import DataParallel
from slackline.overlap.reduction._watched_parameters import WatchedParameters


def backward(model, batch):
    model(batch).square().sum().backward()


def adam(net):
    return torch.optim.Adam(net.parameters(), lr=0.1)


class Pair:
    """A wrapped model with pending steps and a plain one, each with a list of its parameters."""

    def __init__(self, wrap, module, batch, steps=1):
        self.plain = copy.deepcopy(module)
        self.kept = list(module.parameters()), list(self.plain.parameters())
        self.model, self.optimizer, self.group = wrap(module, adam(module))
        self.both = (self.model, self.optimizer), (self.plain, adam(self.plain))
        for _ in range(steps):
            for net, optimizer in self.both:
                backward(net, batch)
                optimizer.step()
        assert self.group.waits == []


@pytest.fixture
def pair(wrap, chain, batch):
    return Pair(wrap, chain, batch)


def linear(p):
    return nn.functional.linear(torch.ones(1, p.shape[-1]), p)


READERS = {
    "data": lambda p: p.data.clone(),
    "detach": lambda p: p.detach().clone(),
    "lerp_": lambda p: torch.zeros_like(p).lerp_(p, 0.5),
    "_foreach": lambda p: torch._foreach_mul([p], 2)[0],
    "numpy": lambda p: torch.from_numpy(p.detach().numpy().copy()),
    "tolist": lambda p: torch.tensor(p.tolist()),
    "a deep copy": copy.deepcopy,
    "a pickle": lambda p: pickle.loads(pickle.dumps(p)),
    "an element": lambda p: p[0, 0],
    "a vector": lambda p: nn.utils.parameters_to_vector([p]),
    "an operator": lambda p: torch.ops.aten.mul.Tensor(p, 2),
    "a layer's function": linear,
    "copy_": lambda p: torch.empty_like(p).copy_(p),
    "vmap": lambda p: torch.vmap(torch.sin)(p),
    "the gradient": lambda p: p.grad.clone(),
    "as_tensor": lambda p: torch.as_tensor(p).clone(),
    "from an inference": torch.inference_mode()(lambda p: p * 2),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_parameter_of_a_list_has_taken_its_step_when_it_is_read(pair, read):
    mine, theirs = (read(kept[2]) for kept in pair.kept)
    assert type(mine) is type(theirs)
    assert torch.equal(mine, theirs)
    assert pair.group.waits == [2]
    assert type(pair.kept[0][2]) is nn.Parameter


def test_compiled_code_reads_finished_values(pair):
    function = torch.compile(lambda p: p * 2, backend="eager")
    for _ in range(2):
        mine, theirs = (function(kept[2]) for kept in pair.kept)
        assert torch.equal(mine, theirs)


def test_facts_that_do_not_depend_on_the_step_wait_for_nothing(pair):
    for mine, theirs in zip(*pair.kept, strict=True):
        assert (mine.shape, mine.dtype, mine.numel()) == (theirs.shape, theirs.dtype, mine.numel())
        assert isinstance(mine, nn.Parameter)
        assert mine.requires_grad
        assert len({mine, mine}) == 1
    assert pair.group.waits == []


def test_a_write_to_a_parameter_of_a_list_comes_after_its_step(pair):
    with torch.no_grad():
        for kept in pair.kept:
            kept[2].mul_(2)
            kept[0].data = torch.ones(4, 4)
            kept[1].grad = None
    for mine, theirs in zip(*pair.kept, strict=True):
        assert torch.equal(mine, theirs)
        assert (mine.grad is None) == (theirs.grad is None)


SHARING = {
    "data": lambda module: [p.data for p in module.parameters()],
    "detach": lambda module: [p.detach() for p in module.parameters()],
    "state_dict": lambda module: list(module.state_dict().values()),
    "numpy": lambda module: [torch.from_numpy(p.detach().numpy()) for p in module.parameters()],
    "views": lambda module: [p.detach().view(-1)[1:] for p in module.parameters()],
}


@pytest.mark.parametrize("share", SHARING.values(), ids=SHARING)
def test_step_waits_for_parameters_whose_memory_is_shared(wrap, chain, batch, share, caplog):
    caplog.set_level(logging.INFO, "slackline.overlap")
    plain = copy.deepcopy(chain)
    kept = share(chain)[2:4]
    model, optimizer, group = wrap(chain, adam(chain))
    reference = adam(plain)
    for _ in range(2):
        for net, opt in ((model, optimizer), (plain, reference)):
            backward(net, batch)
            opt.step()
            opt.zero_grad()
        assert group.waits == [2, 3]
        for mine, theirs in zip(kept, share(plain)[2:4], strict=True):
            assert torch.equal(mine, theirs)
        model.synchronize()
        group.forget()
    assert [record.getMessage() for record in caplog.records] == [
        "another tensor shares the memory of parameter '1.weight' (and of 1 more), so their "
        "updates are awaited in step()"
    ]
    del kept, mine
    for _ in range(2):
        backward(model, batch)
        optimizer.step()
        assert group.waits == []
        model.synchronize()
        group.forget()


def test_memory_that_a_parameter_got_later_is_looked_at_too(wrap, chain, batch):
    plain = copy.deepcopy(chain)
    model, optimizer, group = wrap(chain, adam(chain))
    reference = adam(plain)
    both = ((model, optimizer), (plain, reference))
    kept: list[torch.Tensor] = []
    for step in range(4):
        for net, opt in both:
            backward(net, batch)
            opt.step()
            opt.zero_grad()
        assert group.waits == ([2] if kept else [])
        for mine in kept:
            assert torch.equal(mine, plain[1].weight)
        model.synchronize()
        group.forget()
        if step == 1:  # the program gives the parameter other memory and keeps a tensor of it
            kept = [chain[1].weight.detach().clone()]
            chain[1].weight.data = kept[0]


def test_parameters_that_share_memory_with_each_other_do_not_wait_in_step(wrap, batch):
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    flat = torch.randn(2, 4, 4)
    for layer, part in zip(module, flat, strict=True):
        layer.weight = nn.Parameter(part)
    del flat, part
    Pair(wrap, module, batch)


@pytest.mark.parametrize("averaged", [{}, {"multi_avg_fn": get_ema_multi_avg_fn(0.5)}])
def test_averages_of_weights_are_those_of_a_plain_model(pair, batch, averaged):
    means = [AveragedModel(net, **averaged) for net in (pair.model.module, pair.plain)]
    for _ in range(3):
        for mean, (net, optimizer) in zip(means, pair.both, strict=True):
            optimizer.zero_grad()
            backward(net, batch)
            optimizer.step()
            mean.update_parameters(net)
    for mine, theirs in zip(*(mean.parameters() for mean in means), strict=True):
        assert torch.equal(mine, theirs)


def moving_average(ranks, batch, update):
    """Train on two ranks, and return each rank's moving average by `update` beside its reference.

    The reference reads the parameters after `synchronize`.
    """

    def be(group):
        torch.manual_seed(3)
        module = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
        kept = list(module.parameters())
        model = DataParallel(module, optimizer := adam(module), process_group=group)
        means, right = ([p.detach().clone() for p in kept] for _ in range(2))
        for _ in range(5):
            backward(model, batch + group.rank)
            optimizer.step()
            optimizer.zero_grad()
            update(means, kept)
            model.synchronize()
            for mean, p in zip(right, model.parameters(), strict=True):
                mean.lerp_(p.detach(), 0.25)
        model.close()
        return means, right

    return ranks(2, be)


def one_by_one(means, kept):
    for mean, p in zip(means, kept, strict=True):
        mean.lerp_(p.detach(), 0.25)


def all_at_once(means, kept):
    with torch.no_grad():
        torch._foreach_lerp_(means, kept, 0.25)


@pytest.mark.parametrize("update", [one_by_one, all_at_once])
def test_a_moving_average_over_a_list_is_right_and_alike_on_all_ranks(ranks, batch, update):
    (first, right), (second, _) = moving_average(ranks, batch, update)
    for mine, theirs, expected in zip(first, second, right, strict=True):
        assert torch.equal(mine, theirs)
        assert torch.equal(mine, expected)


def test_without_watched_classes_the_average_is_wrong(wrap, chain, batch, monkeypatch):
    monkeypatch.setattr(WatchedParameters, "watch", lambda watched, parameter: None)
    monkeypatch.setattr(WatchedParameters, "kept_elsewhere", lambda watched, states: [])
    pair = Pair(wrap, chain, batch)  # No reduction ends before a wait for it.
    first, right = ([torch.zeros_like(p) for p in kept] for kept in pair.kept)
    for means, kept in zip((first, right), pair.kept, strict=True):
        one_by_one(means, kept)
    assert pair.group.waits == []
    assert not any(map(torch.equal, first, right))


@pytest.mark.parametrize("group_bytes", [0, 1 << 20])
def test_a_list_of_parameters_can_be_clipped(wrap, manual_group, chain, batch, group_bytes):
    plain = copy.deepcopy(chain)
    group = manual_group(size=2, peers=lambda tag, mine: 2 * mine)
    kept = list(chain.parameters())
    model, optimizer, _ = wrap(
        chain, adam(chain), group=group, average=False, group_bytes=group_bytes
    )
    reference = adam(plain)
    for _ in range(3):
        backward(model, batch)
        norm = nn.utils.clip_grad_norm_(kept, 0.1)
        optimizer.step()
        optimizer.zero_grad()
        backward(plain, batch)
        for parameter in plain.parameters():
            parameter.grad *= 3
        assert torch.equal(norm, nn.utils.clip_grad_norm_(plain.parameters(), 0.1))
        reference.step()
        reference.zero_grad()
    for mine, theirs in zip(kept, plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_list_that_was_clipped_is_not_clipped_again_before_it_is_reduced(wrap, chain, batch):
    kept = list(chain.parameters())
    plain = copy.deepcopy(chain)
    model, *_ = wrap(chain)
    for step in range(2):
        backward(model, batch)
        backward(plain, batch)
        if step:
            with pytest.raises(UsageError, match="not reduced yet after several backward passes"):
                nn.utils.clip_grad_norm_(kept, 0.1)
            model.synchronize()
        norm = nn.utils.clip_grad_norm_(kept, 0.1)
        torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(plain.parameters(), 0.1))


def test_gradients_that_this_rank_does_not_have_are_read_from_a_list(wrap, manual_group, batch):
    module = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    module.forward = lambda x: module[0](x)
    kept = list(module.parameters())
    group = manual_group(size=2, peers=lambda tag, mine: torch.ones_like(mine))
    model, _, _ = wrap(module, group=group, average=False)
    backward(model, batch)
    assert kept[2].grad.eq(1).all()


def test_a_gradient_of_a_list_after_several_backward_passes_is_refused(wrap, chain, batch):
    kept = list(chain.parameters())
    model, _, _ = wrap(chain)
    for _ in range(2):
        backward(model, batch)
    with pytest.raises(UsageError) as caught:
        _ = kept[2].grad
    assert str(caught.value) == (
        "the gradient of '1.weight' is not reduced yet after several backward passes: call "
        "synchronize() on all ranks before reading a list of parameters that was made earlier"
    )
    model.synchronize()
    assert kept[2].grad is not None


def test_another_thread_is_told_that_the_update_is_pending(pair):
    found = []

    def read():
        try:
            found.append(pair.kept[0][2].detach().clone())
        except UsageError as error:
            found.append(str(error))

    def run():
        thread = threading.Thread(target=read, name="saver")
        thread.start()
        thread.join()
        return found.pop()

    assert run() == (
        "parameter '1.weight' was read in thread 'saver' while its update was pending in thread "
        "'MainThread', which must call synchronize() before"
    )
    pair.model.synchronize()
    assert torch.equal(run(), pair.kept[1][2])


def test_an_optimizer_that_fails_leaves_its_parameters_watched(pair, monkeypatch):
    def fail(optimizer):
        raise ArithmeticError("on purpose")

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", fail)
        for _ in range(2):
            with pytest.raises(ArithmeticError, match="on purpose"):
                _ = pair.kept[0][2].data
    assert torch.equal(*(kept[2] for kept in pair.kept))


@pytest.mark.parametrize("end", ["close", "abandon"])
def test_parameters_have_their_own_class_after_the_end(pair, end):
    getattr(pair.model, end)()
    assert {type(p) for p in pair.kept[0]} == {nn.Parameter}
