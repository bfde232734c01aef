"""Tests of small modules of slackline.overlap: memory layout, order, checks, manifest, recorder."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, optim

from slackline.errors import UsageError
from slackline.overlap import DataParallel
from slackline.overlap._manifest import decode, difference, encode, manifest
from slackline.overlap._recorder import Recorder
from slackline.overlap.exchange import InOrder, is_dense, layout


@given(st.lists(st.integers(0, 1000), min_size=1))
def test_blocks_lie_on_lines_and_do_not_overlap(sizes):
    offsets, total = layout(sizes)
    ends = [*offsets[1:], total]
    for offset, size, end in zip(offsets, sizes, ends, strict=True):
        assert offset % 64 == 0
        assert size <= end - offset < size + 64


def test_dense_tensors_fill_one_stretch_of_memory():
    kernel = torch.empty(2, 3, 4, 5)
    for dense in (kernel, kernel.transpose(0, 2), kernel.to(memory_format=torch.channels_last)):
        assert is_dense(dense)
    assert is_dense(torch.empty(()))
    assert is_dense(torch.empty(0, 3))
    assert is_dense(torch.empty(4, 1, 3))
    assert not is_dense(kernel[:, :2])
    assert not is_dense(torch.empty(3).expand(2, 3))


@given(st.permutations(range(6)))
def test_whatever_order_keys_come_in_they_leave_in_the_fixed_one(arrivals):
    order = InOrder((5, 4, 3, 2, 1, 0))
    for _ in range(2):
        assert [key for arrival in arrivals for key in order.offer(arrival)] == [5, 4, 3, 2, 1, 0]
        order.restart()


def test_a_key_is_held_back_until_those_before_it_have_come():
    order = InOrder((3, 2, 1, 0))
    assert list(order.offer(2)) == []
    assert list(order.offer(2)) == []
    assert list(order.offer(3)) == [3, 2]
    order.restart()
    assert list(order.offer(3)) == [3]


def test_a_manifest_survives_the_wire():
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    entries = manifest(module, {id(module[0].weight): 0})
    assert decode(encode(entries, "torch.bfloat16")) == (entries, "torch.bfloat16")
    assert [entry.role for entry in entries[:2]] == ["optimizer 0", "held by no optimizer"]
    assert difference([entries, entries]) is None


def sgd(module):
    return optim.SGD(module.parameters(), lr=0.1)


def two_optimizers(module):
    return [sgd(module), sgd(module)]


def with_a_stranger(module):
    return optim.SGD([*module.parameters(), nn.Parameter(torch.zeros(2, 3))], lr=0.1)


def expanded():
    module = nn.Module()
    module.wide = nn.Parameter(torch.zeros(3).expand(2, 3))
    return module


def integers():
    module = nn.Module()
    module.small = nn.Parameter(torch.zeros(3, dtype=torch.float8_e4m3fn))
    return module


REFUSED = {
    "no optimizer": (
        lambda: nn.Linear(2, 2),
        lambda module: [],
        "a model must be wrapped together with its optimizer, not with none",
    ),
    "a stranger": (
        lambda: nn.Linear(2, 2),
        with_a_stranger,
        "optimizer 0 holds a parameter (2x3) that the model lacks",
    ),
    "twice": (
        lambda: nn.Linear(2, 2),
        two_optimizers,
        "parameter 'weight' must be in one optimizer, not in two",
    ),
    "sparse": (
        lambda: nn.Sequential(nn.Embedding(3, 3, sparse=True)),
        sgd,
        "the gradients of module '0' must be dense, not sparse",
    ),
    "lazy": (
        lambda: nn.LazyLinear(3),
        lambda module: optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1),
        "parameter 'weight' is lazy; run one forward before wrapping",
    ),
    "meta": (
        lambda: nn.Linear(2, 2, device="meta"),
        sgd,
        "parameter 'weight' is on the meta device and has no values",
    ),
    "overlapping": (
        expanded,
        sgd,
        "parameter 'wide' must be dense in memory, not of strides (0, 1) for shape (2, 3)",
    ),
    "type": (
        integers,
        sgd,
        "a gradient's type must be one of float32, float64, float16, bfloat16, "
        "not torch.float8_e4m3fn",
    ),
}


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize(("make", "hold", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_wrapped_is_named(make, hold, message, manual_group):
    module = make()
    with pytest.raises(UsageError) as caught:
        DataParallel(module, hold(module), process_group=manual_group())
    assert str(caught.value) == message


def test_a_model_is_wrapped_once(wrap, chain):
    _, optimizer, group = wrap(chain)
    with pytest.raises(UsageError) as caught:
        DataParallel(nn.Sequential(chain), sgd(chain), process_group=group)
    assert str(caught.value) == "module '0' belongs to another wrapped model already"
    with pytest.raises(UsageError) as caught:
        DataParallel(nn.Linear(2, 2), optimizer, process_group=group)
    assert str(caught.value) == "optimizer 0 belongs to another wrapped model already"


def test_without_a_process_group_the_message_says_what_to_call():
    module = nn.Linear(2, 2)
    with pytest.raises(UsageError) as caught:
        DataParallel(module, sgd(module))
    text = "there is no default process group; call init_process_group first"
    assert str(caught.value) == text


def test_a_model_that_changes_its_type_is_told_at_the_next_backward(wrap, chain, batch):
    model, _, _ = wrap(chain)
    parameters = list(chain.parameters())
    model.double()
    with pytest.raises(UsageError) as caught:
        model(batch.double()).sum().backward()
    assert str(caught.value) == (
        "the gradient of '2.bias' must stay torch.float32 on cpu as it was when the model was "
        "wrapped, not become torch.float64 on cpu"
    )
    for parameter in parameters:
        parameter.grad = None


class Ticks:
    """A clock that the test sets."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        return self.now


def test_waiting_in_the_next_forward_counts_for_the_step_it_waits_for():
    clock, told = Ticks(), []
    recorder = Recorder(2, 0, told.append, clock=clock, unix=lambda: 77)
    recorder.posted(100, 1)
    recorder.posted(20, 1)
    clock.now = 3
    recorder.waited(0)
    clock.now = 50
    recorder.stepped()
    assert told == []
    clock.now = 54
    recorder.waited(50, late=True)
    recorder.waited(53)
    recorder.settled()
    recorder.settled()
    (first,) = told
    assert (first.rank, first.step, first.time_ns, first.wall_ns) == (2, 0, 77, 50)
    assert (first.exposed_ns, first.waited) == (7, 2)
    assert (first.reduced_bytes, first.parameters) == (120, 2)
    clock.now = 80
    recorder.stepped()
    recorder.settled()
    second = told[1]
    assert (second.step, second.wall_ns, second.exposed_ns, second.reduced_bytes) == (1, 30, 1, 0)


def test_a_step_has_its_phases_and_the_waits_for_each_group():
    times = iter(range(0, 1000, 10))
    told = []
    recorder = Recorder(0, 0, told.append, clock=lambda: next(times), unix=lambda: 77)
    began = recorder.forward_began()  # 10
    recorder.forward_ended(began)  # 20
    recorder.posted(100, 2, group=4)  # 30
    recorder.posted(60, 1, group=0)  # 40
    recorder.waited(47, group=4)  # 50
    recorder.waited(59)  # 60
    recorder.stepped()  # 70
    recorder.posted(8, 1, group=0)  # 80, of the next step
    recorder.waited(85, late=True, group=0)  # 90
    recorder.waited(93, late=True, group=4)  # 100
    recorder.settled()
    (step,) = told
    assert (step.wall_ns, step.forward_ns, step.backward_ns) == (70, 10, 50)
    assert (step.groups, step.group_bytes) == ((4, 0), (100, 60))
    assert step.group_posted_ns == (30, 40)
    assert (step.group_exposed_ns, step.group_late_ns) == ((3, 0), (7, 5))
    assert step.exposed_ns == 3 + 1 + 5 + 7
    assert (step.hidden_ns, step.group_ended_ns) == (None, ())
    recorder.stepped()
    recorder.settled()
    assert (told[1].groups, told[1].group_bytes, told[1].group_posted_ns) == ((0,), (8,), (10,))
    assert (told[1].forward_ns, told[1].backward_ns) == (0, 0)
