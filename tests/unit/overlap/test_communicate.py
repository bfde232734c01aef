"""Tests of gradients that travel as bf16, with the exact values that they must have."""

import copy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn, optim

from slackline.errors import MismatchError, PeerError, UsageError
from slackline.nic import NicOptions
from slackline.overlap import DataParallel
from slackline.overlap.exchange import _narrow
from slackline.overlap.exchange._interface import NicExchange
from slackline.overlap.reduction._parameter_state import Use
from slackline.testing import run_ranks

BF16 = torch.bfloat16
ARENA = 64 << 20
LARGE = 2.0**27
"""A number to which fp32 cannot add a small one."""


def reduced(gradients, average=True):
    """Return what ranks must have of their fp32 gradients: each rounded to bf16, the sum in fp32 in
    rank order, divided if it is an average, rounded to bf16.

    A rank without a gradient has None; all are None if no rank has one.
    """
    present = [each for each in gradients if each is not None]
    if not present:
        return None
    total = torch.zeros_like(present[0]) if gradients[0] is None else gradients[0].to(BF16).float()
    for each in gradients[1:]:
        total = total + (torch.zeros_like(total) if each is None else each.to(BF16).float())
    return (total / len(gradients) if average else total).to(BF16).float()


def fill(module, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.data.uniform_(-0.5, 0.5, generator=generator)
    return module


def exchanged(group, values, average, **options):
    """Reduce a tensor of these values on an exchange of its own; return the result."""
    exchange = NicExchange(group, 1, **options)
    (flat,) = exchange.allocate([(len(values), torch.float32)])
    flat.copy_(values)
    pending = exchange.reduction(0, flat, average=average)(0)
    pending.wait()
    found = flat.clone()
    flat.zero_()
    pending.wait()
    assert not flat.any()  # the result is copied back once, by the first wait
    exchange.release()
    return found


def drawn(rank, count):
    """Return numbers of which two ranks' large ones cancel, so that the order of a sum shows."""
    values = torch.randn(count, generator=torch.Generator().manual_seed(100 * count + rank))
    values[rank % 2 :: 3] += LARGE if rank < 2 else -LARGE
    return values


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize(
    ("size", "order", "rails"),
    [
        (2, "any", ("tcp",)),
        (3, "rank", ("udp",)),
        (3, "any", ("tcp",)),
        (4, "any", ("shm",)),
        (4, "rank", ("shm",)),
        (6, "any", ("tcp",)),
    ],
)
def test_an_engine_sums_the_rounded_gradients_in_fp32_in_rank_order(size, order, rails, average):
    counts = (1, 5, 31, 1000, 70_001)

    def body(group):
        return [
            exchanged(group, drawn(group.rank, count), average, communicate=BF16)
            for count in counts
        ]

    options = NicOptions(order=order, rails=rails, arena_bytes=ARENA)
    wanted = [reduced([drawn(r, count) for r in range(size)], average) for count in counts]
    for results in run_ranks(size, body, options=options):
        for found, right in zip(results, wanted, strict=True):
            assert torch.equal(found, right)


def test_the_numbers_tell_an_order_and_a_second_rounding_apart():
    ranks = [drawn(rank, 1000) for rank in range(4)]
    right = reduced(ranks)
    assert not torch.equal(right, reduced(ranks[::-1]))
    assert not torch.equal(right, (sum(ranks) / 4).to(BF16).float())
    assert not torch.equal(right, (sum(each.to(BF16) for each in ranks) / 4).float())


def test_infinities_and_what_is_not_a_number_reach_every_rank(ranks):
    huge = torch.finfo(torch.float32).max
    columns = torch.tensor(
        [
            [float("inf"), 1.0, 1.0],
            [float("inf"), float("-inf"), 0.0],
            [float("nan"), 1.0, 2.0],
            [huge, 1.0, 1.0],  # more than bf16's largest number, so infinite once it is rounded
            [1e-45, 1e-45, 1e-45],  # less than half of bf16's least number
            [3e38, 3e38, -3e38],  # infinite as a sum in fp32
            [1.0, 2.0**-8, 2.0**-9],  # more than a tie as a sum in fp32, a tie if rounded early
            [-0.0, -0.0, -0.0],
        ]
    ).T
    wanted = reduced(list(columns), average=False)
    assert wanted[[0, 3, 5]].isinf().all()
    assert wanted[[1, 2]].isnan().all()
    assert wanted[4] == 0

    def be(group):
        return exchanged(group, columns[group.rank], False, communicate=BF16)

    for found in ranks(3, be):
        assert torch.equal(found.nan_to_num(7.0), wanted.nan_to_num(7.0))
        assert torch.equal(found.signbit()[[0, 7]], wanted.signbit()[[0, 7]])


class Sides(nn.Module):
    """A module with parameters of several types and sizes; each row of `use` picks a part."""

    def __init__(self, long):
        super().__init__()
        self.trunk = nn.Linear(4, long)
        self.sides = nn.ModuleList([nn.Linear(long, 3) for _ in range(2)])
        self.small = nn.Parameter(torch.zeros(3, dtype=BF16))
        self.turn = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
        fill(self, 0)

    def forward(self, x, use):
        x = self.trunk(x).tanh()
        made = sum(self.sides[side](x) for side in range(2) if use >> side & 1)
        if use & 4:
            made = made + self.small.float()
        if use & 8:
            made = made + (self.turn * (1 + 2j)).real
        return made


USE = st.integers(0, 15).filter(lambda use: use & 3)
STEP = st.tuples(
    st.lists(USE, min_size=4, max_size=4),  # the parts that each rank uses
    st.integers(0, 1),  # backward passes within no_sync before
    st.sampled_from(["none", "clip", "read", "synchronize"]),
)


class OneProcess:
    """The ranks' gradients computed one after the other, and reduced by the rule of `reduced`."""

    def __init__(self, size, long, average):
        self.ranks = [Sides(long) for _ in range(size)]
        self.module = Sides(long)
        self.optimizer = optim.Adam(self.module.parameters(), lr=0.05)
        self.average = average

    def step(self, turn, uses, before, action):
        for rank, module in enumerate(self.ranks):
            module.load_state_dict(self.module.state_dict())
            module.zero_grad()
            for part in range(before + 1):
                loss(module, rank, turn + 1000 * part, uses[rank]).backward()
        table = zip(*(module.parameters() for module in self.ranks), strict=True)
        for mine, theirs in zip(self.module.parameters(), table, strict=True):
            mine.grad = self.reduce([each.grad for each in theirs])
        norm = None
        if action == "clip":
            norm = nn.utils.clip_grad_norm_(self.module.parameters(), 0.1)
        self.optimizer.step()
        return norm

    def reduce(self, grads):
        kinds = {each.dtype for each in grads if each is not None}
        if torch.complex64 not in kinds:
            found = reduced(
                [None if each is None else each.float() for each in grads], self.average
            )
            return found if found is None else found.to(kinds.pop())
        parts = [None if each is None else torch.view_as_real(each) for each in grads]
        return torch.view_as_complex(reduced(parts, self.average))


def loss(model, rank, turn, use):
    generator = torch.Generator().manual_seed(10 * turn + rank)
    return model(torch.randn(2, 4, generator=generator), use).square().sum()


@settings(
    max_examples=max(10, settings.default.max_examples // 3),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    size=st.integers(2, 4),
    steps=st.lists(STEP, min_size=1, max_size=5),
    group_bytes=st.sampled_from([0, 100, 1 << 20]),
    average=st.booleans(),
    long=st.sampled_from([5, 40]),
)
def test_a_training_has_the_bits_of_one_process_that_rounds(
    ranks, size, steps, group_bytes, average, long
):
    def be(group):
        module = Sides(long)
        optimizer = optim.Adam(module.parameters(), lr=0.05)
        model = DataParallel(
            module,
            optimizer,
            process_group=group,
            average=average,
            group_bytes=group_bytes,
            communicate=BF16,
        )
        seen = []
        for turn, (uses, before, action) in enumerate(steps):
            use = uses[group.rank]
            with model.no_sync():
                for part in range(before):
                    loss(model, group.rank, turn + 1000 * (part + 1), use).backward()
            loss(model, group.rank, turn, use).backward()
            if action == "clip":
                seen.append(model.clip_grad_norm_(0.1))
            elif action == "read":
                seen.append(copy.deepcopy(module.small.grad))
            elif action == "synchronize":
                model.synchronize()
            optimizer.step()
            optimizer.zero_grad()
            seen += [parameter.detach().clone() for parameter in module.parameters()]
        model.close()
        return seen

    alone = OneProcess(size, long, average)
    expected = []
    for turn, step in enumerate(steps):
        norm = alone.step(turn, *step)
        if step[2] == "clip":
            expected.append(norm)
        elif step[2] == "read":
            expected.append(alone.module.small.grad)
        expected += [parameter.detach().clone() for parameter in alone.module.parameters()]
    for seen in ranks(size, be):
        for found, right in zip(seen, expected, strict=True):
            assert (found is None) == (right is None)
            assert found is None or torch.equal(found, right)


def backward(model, batch):
    model(batch).square().sum().backward()


def test_a_reduction_ends_before_its_result_is_copied_back(manual_group):
    group = manual_group(2)
    exchange = NicExchange(group, 1, communicate=BF16)
    (flat,) = exchange.allocate([(3, torch.float32)])
    flat.copy_(torch.tensor([1.0, 1.0 + 2**-9, 3.0]))
    pending = exchange.reduction(0, flat, average=False)(0)
    assert not pending.done()
    assert pending.ended_ns == 0
    assert flat.tolist() == [1.0, 1.0 + 2**-9, 3.0]
    group.complete()
    assert pending.done()
    assert 0 < pending.ended_ns <= group.clock()
    pending.wait()
    assert flat.tolist() == [2.0, 2.0, 6.0]


def test_a_failed_reduction_raises_at_each_wait_and_leaves_the_gradient(manual_group):
    group = manual_group(2)
    exchange = NicExchange(group, 1, communicate=BF16)
    (flat,) = exchange.allocate([(1, torch.float32)])
    flat.fill_(1.0 + 2**-9)
    pending = exchange.reduction(0, flat, average=False)(0)
    group.transfers[0].error = PeerError("rank 1 has died")
    for _ in range(2):
        with pytest.raises(PeerError, match="rank 1 has died"):
            pending.wait()
    assert flat.item() == 1.0 + 2**-9


def test_figures_over_the_ranks_stay_exact(manual_group):
    exchange = NicExchange(manual_group(2), 1, communicate=BF16)
    (flat,) = exchange.allocate([(1, torch.float32)])
    flat.fill_(1.0 + 2**-20)
    exchange.reduction(0, flat, average=False, exact=True)(0).wait()
    assert flat.item() == 2.0 + 2**-19


def test_a_rank_alone_rounds_nothing(wrap, chain, batch):
    model, _, _ = wrap(chain, communicate=BF16)
    plain = copy.deepcopy(chain)
    backward(model, batch)
    backward(plain, batch)
    model.synchronize()
    for mine, theirs in zip(chain.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


def test_a_model_with_a_later_optimizer_sends_bf16_too(manual_group, chain, batch):
    model = DataParallel(chain, process_group=manual_group(2), communicate=BF16, group_bytes=0)
    model.attach(optim.SGD(chain.parameters(), lr=0.1))
    backward(model, batch)
    model.synchronize()
    for parameter in chain.parameters():
        assert torch.equal(parameter.grad, parameter.grad.to(BF16).float())
    model.close()


def test_a_step_tells_the_bytes_that_travel(wrap, manual_group, chain, batch):
    told = []
    group = manual_group(2)
    model, optimizer, _ = wrap(
        chain, group=group, communicate=BF16, group_bytes=1 << 20, on_step=told.append
    )
    backward(model, batch)
    optimizer.step()
    model.synchronize()
    elements = (17 + 5) * 3
    assert told[0].reduced_bytes == 2 * elements
    assert told[0].group_bytes == (2 * elements,)


def test_gradients_of_16_bits_travel_as_they_are(wrap, manual_group, batch):
    for dtype in (torch.float16, BF16):
        module = nn.Linear(4, 4).to(dtype)
        model, _, group = wrap(module, group=manual_group(2), communicate=BF16)
        plain = copy.deepcopy(module)
        backward(model, batch.to(dtype))
        backward(plain, batch.to(dtype))
        model.synchronize()
        assert len(group.memory) == 1  # no second block
        for mine, theirs in zip(module.parameters(), plain.parameters(), strict=True):
            assert torch.equal(mine.grad, theirs.grad)


def test_a_trial_of_groups_needs_no_further_memory(ranks):
    def be(group, communicate):
        module = fill(nn.Sequential(*(nn.Linear(16, 16) for _ in range(4))), 0)
        optimizer = optim.SGD(module.parameters(), lr=0.1)
        model = DataParallel(module, optimizer, process_group=group, communicate=communicate)
        seen = set()
        while not model.trial_result:
            backward(model, torch.ones(2, 16))
            optimizer.step()
            optimizer.zero_grad()
            seen.add(model.group_bytes)
        model.synchronize()
        held = group.counters()["allocated"]
        model.close()
        assert len(seen) > 1
        return held, group.counters()["allocated"]

    assert ranks(2, lambda group: be(group, None)) == [(2, 0)] * 2  # gradients and figures
    assert ranks(2, lambda group: be(group, BF16)) == [(3, 0)] * 2


def test_the_groups_need_no_entry_in_a_checkpoint(manual_group):
    group = manual_group(3)
    group.rank_ordered = False
    assert not NicExchange(group, 1).rank_ordered
    assert NicExchange(group, 1, communicate=BF16).rank_ordered


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("size", [2, 3, 7, 100, 129, 255, _narrow.MOST_RANKS])
def test_ranks_with_a_gradient_are_counted(wrap, manual_group, batch, size, average):
    """Check that the element that counts them tells apart all ranks, some and one."""
    for count in {1, 2, size // 2 + 1, size - 1, size}:
        group = manual_group(size, lambda tag, mine, others=count - 1: mine.new_ones(()) * others)
        module = nn.Linear(4, 4)
        model, _, _ = wrap(
            module, group=group, communicate=BF16, average=average, group_bytes=1 << 20
        )
        backward(model, batch)
        model.synchronize()
        states = [model._tracker.owners[id(each)][1] for each in module.parameters()]
        expected = Use.EVERYWHERE if count == size else Use.SOMEWHERE
        assert [state.told() for state in states] == [expected] * 2


def test_more_ranks_than_bf16_can_count_are_refused(manual_group, chain):
    with pytest.raises(UsageError) as caught:
        DataParallel(
            chain,
            optim.SGD(chain.parameters(), lr=0.1),
            process_group=manual_group(257),
            communicate=BF16,
        )
    assert str(caught.value) == (
        "communicate=torch.bfloat16 must be used with at most 256 ranks, not 257: "
        "the ranks with a gradient are counted, and bf16 has no larger whole number exactly"
    )


@pytest.mark.parametrize("wrong", [torch.float16, torch.float32, "bfloat16", 16])
def test_another_type_is_refused(chain, wrong):
    with pytest.raises(UsageError) as caught:
        DataParallel(chain, communicate=wrong)
    assert str(caught.value) == f"communicate must be torch.bfloat16 or None, not {wrong!r}"


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_wider_gradients_are_refused(manual_group, dtype):
    module = nn.Module()
    module.weight = nn.Parameter(torch.zeros(2, dtype=dtype))
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(UsageError) as caught:
        DataParallel(module, optimizer, process_group=manual_group(2), communicate=BF16)
    assert str(caught.value) == (
        "parameter 'weight': communicate=torch.bfloat16 must be used with gradients of float32 or "
        "of 16 bits, not float64"
    )


def test_ranks_that_pass_different_types_are_named(ranks, chain):
    def be(group):
        module = copy.deepcopy(chain)
        optimizer = optim.SGD(module.parameters(), lr=0.1)
        communicate = BF16 if group.rank == 1 else None
        DataParallel(module, optimizer, process_group=group, communicate=communicate)

    errors = ranks(3, be, expect=MismatchError)
    for rank, error in enumerate(errors):
        assert (error.rank, error.peer) == (rank, 1)
        assert str(error).startswith(
            "the ranks must wrap the model with the same options, but rank 1 has "
            "communicate=torch.bfloat16 where rank 0 has communicate=None"
        )
