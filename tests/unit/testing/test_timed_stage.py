"""Tests that a stage that only waits is split in the same way as a stage that computes."""

import torch
from torch.distributed.pipelining._backward import (
    stage_backward,
    stage_backward_input,
    stage_backward_weight,
)

from slackline.testing.timed_stage import TimedStage

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
GRADIENT = torch.tensor([[5.0, 6.0], [7.0, 8.0]])


def stage() -> TimedStage:
    return TimedStage(
        2, forward_ns=1_000_000, backward_input_ns=2_000_000, backward_weight_ns=3_000_000
    )


def kinds(timed: TimedStage) -> str:
    return "".join(wait.kind for wait in timed.waits)


def test_the_split_backward_waits_for_the_input_and_later_for_the_weight() -> None:
    timed = stage()
    x = X.clone().requires_grad_()
    out = timed(x)
    assert torch.equal(out, X)
    assert kinds(timed) == "F"

    (for_x,), groups = stage_backward_input([out], [GRADIENT], [x], timed.parameters())
    assert kinds(timed) == "FB"
    assert for_x is not None
    assert torch.equal(for_x, GRADIENT)
    assert timed.weight.grad is None

    stage_backward_weight(timed.parameters(), groups)
    assert kinds(timed) == "FBW"
    assert timed.weight.grad is not None
    assert torch.equal(timed.weight.grad, torch.tensor([12.0, 14.0]))


def test_a_whole_backward_waits_for_both() -> None:
    timed = stage()
    x = X.clone().requires_grad_()
    (for_x,) = stage_backward((timed(x),), (GRADIENT,), (x,))
    assert sorted(kinds(timed)) == ["B", "F", "W"]
    assert for_x is not None
    assert torch.equal(for_x, GRADIENT)
    assert torch.equal(timed.weight.grad, torch.tensor([12.0, 14.0]))  # type: ignore[arg-type]


def test_an_input_without_a_gradient_is_waited_for_too() -> None:
    timed = stage()
    timed(X).backward(GRADIENT)
    assert sorted(kinds(timed)) == ["B", "F", "W"]


def test_a_loss_may_be_the_output() -> None:
    timed = stage()
    x = X.clone().requires_grad_()
    loss = (timed(x) * GRADIENT).sum()
    (for_x,), groups = stage_backward_input([loss], None, [x], timed.parameters())
    stage_backward_weight(timed.parameters(), groups)
    assert kinds(timed) == "FBW"
    assert for_x is not None
    assert torch.equal(for_x, GRADIENT)


def test_no_wait_ends_before_it_is_due() -> None:
    timed = stage()
    timed(X).backward(GRADIENT)
    for wait in timed.waits:
        assert wait.due_ns == wait.start_ns + timed.lengths_ns[wait.kind]
        assert wait.end_ns >= wait.due_ns


def test_nothing_is_waited_for_backward_where_nobody_asks_for_gradients() -> None:
    timed = stage()
    with torch.no_grad():
        assert not timed(X).requires_grad
    assert kinds(timed) == "F"
