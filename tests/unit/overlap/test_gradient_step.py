"""The state of one optimizer's gradients between two steps, without any communication."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from slackline.overlap.reduction._gradient_group import GradientGroup
from slackline.overlap.reduction._gradient_step import GradientStep
from slackline.overlap.reduction._model_state import ModelState
from slackline.overlap.reduction._parameter_state import ParameterState, marks
from slackline.overlap.reduction._watched_parameters import WatchedParameters


def no_post(priority):
    pytest.fail("a GradientStep posts nothing")


def no_report(parameter, gradient):
    pytest.fail("nothing is watched")


def grouped(*sizes):
    """Return gradient groups with as many members as `sizes` tells."""
    numbers = itertools.count()
    return [
        GradientGroup(
            [
                ParameterState(
                    index,
                    f"w{index}",
                    0,
                    torch.nn.Parameter(torch.zeros(1)),
                    torch.zeros(2),
                    1,
                    most=1.0,
                )
                for index in itertools.islice(numbers, size)
            ],
            no_post,
            8 * size,
        )
        for size in sizes
    ]


def step_of(groups, *, in_order=False):
    step = GradientStep(ModelState(WatchedParameters(no_report)), in_order=in_order)
    step.follow(groups)
    return step


SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=5)


@st.composite
def arrivals(draw):
    """Draw groups, and an order in which some of their gradients arrive, some more than once."""
    groups = grouped(*draw(SIZES))
    states = [state for group in groups for state in group.states]
    order = draw(st.permutations(states))
    return groups, order[: draw(st.integers(0, len(order)))]


@given(arrivals(), st.booleans())
def test_each_group_is_posted_once_when_its_last_gradient_has_arrived(drawn, in_order):
    groups, order = drawn
    step = step_of(groups, in_order=in_order)
    posted, here = [], set()
    for state in order:
        here.add(state)
        for group in step.arrive(state):
            assert here.issuperset(group.states)
            assert in_order or state in group.states
            posted.append(group)
            step.post(group)
    whole = [group for group in groups if here.issuperset(group.states)]
    if in_order:
        assert posted == list(itertools.takewhile(here_has(here), groups))
    else:
        assert sorted(posted, key=groups.index) == whole
    assert step.missing() == [group for group in groups if group not in posted]
    assert step.all_posted is (len(posted) == len(groups))
    for group in groups:
        last = [state for state in order if state in group.states][-1:]
        assert step.last(group) is (last[0] if group in whole else None)


def here_has(here):
    return lambda group: here.issuperset(group.states)


def test_a_frozen_member_is_not_waited_for():
    (group,) = grouped(2)
    group.states[0].parameter.requires_grad_(False)
    step = step_of([group])
    assert list(step.members(group)) == [group.states[1]]
    assert step.arrive(group.states[1]) == (group,)


def test_a_group_without_members_is_never_missing():
    empty, other = grouped(1, 1)
    empty.states[0].parameter.requires_grad_(False)
    assert step_of([empty, other]).missing() == [other]


def test_the_members_stay_until_the_next_step():
    (group,) = grouped(2)
    step = step_of([group])
    assert len(step.members(group)) == 2
    group.states[0].parameter.requires_grad_(False)
    assert len(step.members(group)) == 2
    step.restart()
    assert len(step.members(group)) == 1


@pytest.mark.parametrize("hooked", [0, 1])
def test_a_look_finds_gradients_that_no_hook_has_reported(hooked):
    (group,) = grouped(2)
    step = step_of([group])
    group.states[hooked].parameter.grad = torch.zeros(1)
    assert not step.look(group)
    other = group.states[1 - hooked]
    other.parameter.grad = torch.zeros(1)
    assert step.arrive(other) == (group,)


@pytest.mark.parametrize(
    ("through_forward", "tasks", "by_hand", "needed"),
    [
        (0, [1], 0, False),
        (0, [1, 1], 0, False),
        (0, [1, 2], 0, True),
        (1, [1, 2, 3], 0, False),  # the other ranks' backwards may not reach these parameters
        (2, [1], 0, True),
        (0, [1], 2, True),
        (0, [1, 2], 1, False),
    ],
)
def test_several_backwards_need_an_agreement(through_forward, tasks, by_hand, needed):
    model = ModelState(WatchedParameters(no_report))
    step = GradientStep(model, in_order=False)
    model.backwards += through_forward
    for task in tasks:
        step.count_backward(task)
    for _ in range(by_hand):
        step.expect()
    assert step.needs_agreement is needed
    step.take_extras([])
    assert not step.needs_agreement
    step.count_backward(max(tasks) + 1)
    assert step.needs_agreement is (needed or through_forward + by_hand == 0)
    step.restart()
    assert not step.needs_agreement


def test_a_gradient_after_its_post_is_extra_once():
    groups = grouped(1, 1)
    states = [group.states[0] for group in groups]
    step = step_of(groups)
    (group,) = step.arrive(states[0])
    step.post(group)
    assert step.gradient_posted(states[0])
    assert not step.gradient_posted(states[1])
    step.arrive(states[0])
    assert step.needs_agreement
    assert step.take_extras(states) == [True, False]
    assert step.take_extras(states) == [False, False]
    (group,) = step.arrive(states[1])
    step.post(group)
    assert not step.arrive(states[1])
    assert step.needs_agreement
    assert step.take_extras(states) == [False, True]
    assert not step.regular


@given(arrivals(), st.booleans())
def test_nothing_of_a_step_is_left_in_the_next(drawn, in_order):
    groups, order = drawn
    step = step_of(groups, in_order=in_order)
    for state in order:
        for group in step.arrive(state):
            step.post(group)
    for state in order:
        if step.gradient_posted(state):
            step.arrive(state)
    step.opened = step.observed = True
    step.restart()
    assert not any((step.opened, step.observed, step.needs_agreement))
    assert step.missing() == groups
    everything = [state for group in groups for state in group.states]
    assert step.take_extras(everything) == [False] * len(everything)
    assert all(step.last(group) is None for group in groups)
    posted = [group for state in everything for group in step.arrive(state)]
    assert posted == groups


def test_groups_that_stay_keep_their_counts():
    first, second = grouped(2, 1)
    step = step_of([first])
    assert not step.arrive(first.states[0])
    step.follow([first, second])
    assert step.arrive(first.states[1]) == (first,)
    assert step.arrive(second.states[0]) == (second,)


@pytest.mark.parametrize(("there", "mark"), [(True, 1), (False, 0)])
def test_a_device_copies_the_mark_of_a_gradient_with_the_gradients(there, mark):
    parameter = torch.nn.Parameter(torch.zeros(4, device="meta"))
    flat = torch.zeros(5, device="meta")
    state = ParameterState(0, "w", 0, parameter, flat, 1, most=1.0)
    parameter.grad = torch.zeros(4, device="meta") if there else None
    targets, sources = [], []
    with Dispatched() as dispatched:
        state.load(targets, sources)
    # What starts a kernel, beside views: zeros in the place of a gradient that is not there.
    assert dispatched.names - VIEWS == (set() if there else {"aten::zero_"})
    assert [target.storage_offset() for target in targets] == [4, 0][: 1 + there]
    assert [source.numel() for source in sources] == [1, 4][: 1 + there]
    # The mark's source is the element with its value.
    assert sources[0].storage_offset() == mark
    assert marks(flat.dtype, torch.device("cpu")).tolist() == [0, 1]


VIEWS = {"aten::slice.Tensor", "aten::as_strided", "aten::detach"}


class Dispatched(TorchDispatchMode):
    """Records the names of the operators that run within it."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))
