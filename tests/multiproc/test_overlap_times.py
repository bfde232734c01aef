"""Tests of the times of reductions that torch's process groups move, as steps record them."""

import time

import torch
from rank_jobs import Jobs
from rank_marks import mark, wait_for_marks
from torch import distributed as dist
from torch import nn, optim

from slackline.history import decode
from slackline.overlap import DataParallel
from slackline.records import StepSummary, encode


def over_gloo(rank: int, size: int) -> tuple[str, int]:
    """Train for a step in which rank 1 begins its backward after the end of rank 0's backward.

    Return the step's record as a line, and a time: rank 0 has ended its backward, or rank 1 begins
    its backward.
    """
    module = nn.Linear(4, 4)
    told: list[StepSummary] = []
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    group = dist.new_group(backend="gloo")
    with DataParallel(module, optimizer, process_group=group, on_step=told.append) as model:
        loss = model(torch.ones(2, 4)).sum()
        if rank == 1:
            wait_for_marks("posted", [0])
        at_ns = time.monotonic_ns()
        loss.backward()
        if rank == 0:
            at_ns = time.monotonic_ns()
            mark("posted")
            wait_for_marks("reduced", [1])
        optimizer.step()
        model(torch.ones(2, 4))
        if rank == 1:
            mark("reduced")
    (step,) = told
    return encode(step), at_ns


def test_a_reduction_over_gloo_is_hidden_while_the_training_thread_does_other_work(
    job: Jobs,
) -> None:
    (line, ended_ns), (other_line, began_ns) = job(2, over_gloo)
    first, second = decode(line), decode(other_line)
    assert isinstance(first, StepSummary)
    assert isinstance(second, StepSummary)
    assert first.hidden_ns is not None
    assert second.hidden_ns is not None
    # Rank 0 has posted its reductions before `ended_ns`, and none can end before `began_ns`.
    assert first.hidden_ns >= began_ns - ended_ns > 0
    for step in (first, second):  # A reduction of rank 1 may end within its post.
        posts_and_ends = zip(step.group_posted_ns, step.group_ended_ns, strict=True)
        assert all(0 < posted <= ended for posted, ended in posts_and_ends)
        assert len(step.group_ended_ns) > 0
