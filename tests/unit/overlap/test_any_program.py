"""Tests that any training script sees the same values in any order of calls as with plain torch."""

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn, optim

from slackline.errors import UsageError
from slackline.overlap import DataParallel, _data_parallel
from slackline.overlap.reduction import _parameter_state
from slackline.overlap.reduction._hooks import STEADY_STEPS


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(3, 3)
        self.sides = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x, side):
        return self.sides[side](self.trunk(x)) * self.scale


class Script:
    """A training script that runs on the wrapped model or on the plain one."""

    def __init__(self, model, module, optimizer, first_seed=0):
        self.model, self.module, self.optimizer = model, module, optimizer
        self.turn = first_seed
        self.kept = list(module.parameters())
        self.average = [parameter.detach().clone() for parameter in self.kept]

    def loss(self, side):
        self.turn += 1
        x = torch.randn(2, 3, generator=torch.Generator().manual_seed(self.turn))
        return self.model(x, side).square().sum()

    def backward(self, side):
        self.loss(side).backward()

    def accumulate(self, side):
        if isinstance(self.model, DataParallel):
            with self.model.no_sync():
                self.backward(1 - side)
        else:
            self.backward(1 - side)
        self.backward(side)

    def evaluate(self, side):
        with torch.no_grad():
            return [self.loss(side)]

    def read_value(self, side):
        return [self.module.sides[side].weight.detach().clone()]

    def read_gradient(self, side):
        return [dict(self.module.sides[side].named_parameters())["bias"].grad]

    def read_all(self, side):
        return [
            *(p.detach().clone() for p in self.module.parameters()),
            *(copy.deepcopy(p.grad) for p in self.module.parameters()),
        ]

    def read_kept(self, side):
        return [p.detach().clone() for p in self.kept[side::2]]

    def average_kept(self, side):
        with torch.no_grad():
            if side:
                torch._foreach_lerp_(self.average, self.kept, 0.5)
            else:
                for mean, parameter in zip(self.average, self.kept, strict=True):
                    mean.mul_(0.5).add_(parameter, alpha=0.5)
        return [mean.clone() for mean in self.average]

    def clip_kept(self, side):
        try:
            norm = nn.utils.clip_grad_norm_(self.kept, 0.5)
        except UsageError:  # after several backward passes
            self.model.synchronize()
            norm = nn.utils.clip_grad_norm_(self.kept, 0.5)
        return [norm, *(copy.deepcopy(p.grad) for p in self.kept)]

    def clip(self, side):
        return [nn.utils.clip_grad_norm_(self.module.parameters(), 0.5)]

    def differentiate(self, side):
        loss = self.loss(side)
        return list(torch.autograd.grad(loss, list(self.module.sides[side].parameters())))

    def step(self, side):
        self.optimizer.step()

    def zero(self, side):
        self.optimizer.zero_grad(set_to_none=bool(side))

    def zero_model(self, side):
        self.model.zero_grad()

    def save(self, side):
        state = self.optimizer.state_dict()["state"]
        return [
            *self.model.state_dict().values(),
            *(state[key]["exp_avg"] for key in sorted(state)),
        ]

    def load(self, side):
        state = {k: torch.full_like(v, 0.5 + side) for k, v in self.module.state_dict().items()}
        self.model.load_state_dict(state)

    def slow_down(self, side):
        self.optimizer.param_groups[0]["lr"] *= 0.5


ACTIONS = [name for name in vars(Script) if name not in ("__init__", "loss") and name[0] != "_"]
STEPS = st.tuples(st.sampled_from([*ACTIONS, "backward", "step", "zero"]), st.integers(0, 1))
ARRIVALS = st.lists(st.integers(0, 7), max_size=3)
GROUP_BYTES = st.sampled_from([0, 100, 1 << 20])
"""Group sizes with which a group has one gradient, a few gradients, or all gradients."""
ALIKE = st.sampled_from([0, 0, STEADY_STEPS + 5])
"""The number of equal steps at the beginning. After STEADY_STEPS of them few parameters have hooks.
Two of three programs begin without equal steps, because these steps take longer than all others."""

LONG = st.sampled_from([0, _parameter_state._LONG])
"""Gradients of at least this many bytes are copied as soon as they arrive: all of them, or none."""
EXACT = st.sampled_from([None, torch.float64])
"""The type in which gradients travel: their own, or a wider one, which takes the way of a narrower
one but leaves all values as they are."""


def any_type(patch):
    """Let gradients travel in any type; torch.bfloat16 is the only one for users."""
    patch.setattr(_data_parallel, "check_communicate", lambda _: None)


def wrap_with(long, *arguments, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_parameter_state, "_LONG", long)
        any_type(patch)
        return DataParallel(*arguments, **options)


def train_alike(script, steps, side=0):
    for _ in range(steps):
        script.backward(side)
        script.step(0)
        script.zero(1)


def same(mine, theirs):
    if mine is None or theirs is None:
        assert mine is None
        assert theirs is None
    else:
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@settings(
    max_examples=settings.default.max_examples * 3 // 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    program=st.lists(st.tuples(STEPS, ARRIVALS), max_size=25),
    group_bytes=GROUP_BYTES,
    alike=ALIKE,
    long=LONG,
    size=st.sampled_from([1, 2]),
    communicate=EXACT,
    hurry=st.none() | st.randoms(use_true_random=False),
)
def test_a_program_sees_the_same_with_and_without_the_wrapper(
    manual_group, program, group_bytes, alike, long, size, communicate, hurry
):
    torch.manual_seed(0)
    module = Branches()
    plain = copy.deepcopy(module)
    group = manual_group(size)  # with a single rank the order would not be observed
    group.hurry = hurry
    optimizer = optim.Adam(module.parameters(), lr=0.1)
    options = {"group_bytes": group_bytes, "communicate": communicate}
    model = wrap_with(long, module, optimizer, process_group=group, **options)
    mine = Script(model, module, optimizer)
    theirs = Script(plain, plain, optim.Adam(plain.parameters(), lr=0.1))
    train_alike(mine, alike)
    train_alike(theirs, alike)
    for (action, side), arrivals in [*program, (("read_all", 0), [])]:
        found, expected = getattr(mine, action)(side), getattr(theirs, action)(side)
        for a, b in zip(found or [], expected or [], strict=True):
            same(a, b)
        group.complete(*[tag for tag in arrivals if tag in group.transfers])
    mine.model.close()


TOGETHER = st.tuples(
    st.sampled_from(
        [
            *("backward", "accumulate", "read_all", "clip", "save", "step", "zero", "load"),
            *("read_kept", "average_kept", "clip_kept"),
        ]
    ),
    st.integers(0, 1),
)


BACKWARDS = ("backward", "accumulate")


class Ranks:
    """A model that a single process trains on the data of two ranks, as the expected result."""

    def __init__(self):
        module = fill(Branches())
        self.script = Script(module, module, optim.Adam(module.parameters(), lr=0.1))

    def loss(self, side):
        self.script.turn += 1
        turn = self.script.turn
        losses = []
        for rank in range(2):
            x = torch.randn(2, 3, generator=torch.Generator().manual_seed(turn + 1000 * rank))
            losses.append(self.script.model(x, (side + rank) % 2).square().sum() / 2)
        return sum(losses)


def fill(module):
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data.uniform_(-0.5, 0.5, generator=generator)
    return module


@settings(
    max_examples=settings.default.max_examples * 3 // 5,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    program=st.lists(TOGETHER, max_size=20),
    odd=st.sets(st.integers(0, 19)),
    group_bytes=GROUP_BYTES,
    alike=ALIKE,
    communicate=st.sampled_from([None, torch.float64, torch.bfloat16]),
)
def test_ranks_that_use_different_parameters_see_the_same(
    ranks, program, odd, group_bytes, alike, communicate
):
    if any(action == "clip_kept" for action, _ in program):
        odd = set()  # a gradient that one rank has read by name may be its own in a list, too

    def be(group):
        module = fill(Branches())
        optimizer = optim.Adam(module.parameters(), lr=0.1)
        options = {"group_bytes": group_bytes, "communicate": communicate}
        model = DataParallel(module, optimizer, process_group=group, **options)
        script = Script(model, module, optimizer, first_seed=1000 * group.rank)
        seen = []
        train_alike(script, alike, side=group.rank)
        for turn, (action, side) in enumerate([*program, ("read_all", 0)]):
            own = (side + group.rank) % 2 if action in BACKWARDS else side
            seen += getattr(script, action)(own) or []
            if group.rank == 0 and turn in odd:
                seen_by_one_rank = module.sides[side].bias.grad
                assert seen_by_one_rank is None or seen_by_one_rank.isfinite().all()
                script.read_value(side)
        return seen

    reference = Ranks()
    reference.script.loss = reference.loss
    expected = []
    train_alike(reference.script, alike)
    for action, side in [*program, ("read_all", 0)]:
        expected += getattr(reference.script, action)(side) or []
    with pytest.MonkeyPatch.context() as patch:
        any_type(patch)
        first, second = ranks(2, be)
    for mine, theirs, right in zip(first, second, expected, strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.equal(mine, theirs)
        if communicate is torch.bfloat16:  # Adam may make any difference of a rounding larger
            assert (mine is None) == (right is None)
        else:
            same(mine, right)
