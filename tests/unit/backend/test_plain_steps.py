"""Tests of the hook by which the steps of scripts without slackline's wrappers are known."""

import gc

import torch
from torch import nn

from slackline.backend._plain_steps import PlainSteps


def optimizer(kind: type[torch.optim.Optimizer] = torch.optim.SGD) -> torch.optim.Optimizer:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.ones(2)
    return kind([parameter], lr=0.1)


def test_each_call_of_step_is_told_with_the_optimizer_s_index() -> None:
    told: list[int] = []
    steps = PlainSteps()
    one, other = optimizer(), optimizer(torch.optim.Adam)
    one.step()
    steps.begin(told.append)
    other.step()
    one.step()
    other.step()
    steps.end()
    one.step()
    assert told == [0, 1, 0]


def test_a_second_engine_takes_the_place_of_the_first_one() -> None:
    first: list[int] = []
    second: list[int] = []
    steps, mine = PlainSteps(), optimizer()
    steps.begin(first.append)
    steps.begin(second.append)
    mine.step()
    steps.end()
    assert (first, second) == ([], [0])


def test_nothing_is_told_once_another_part_records_the_steps() -> None:
    told: list[int] = []
    steps, mine = PlainSteps(), optimizer()
    steps.begin(told.append)
    steps.leave()
    mine.step()
    steps.begin(told.append)
    mine.step()
    assert told == []


def test_a_later_optimizer_takes_the_index_of_one_that_is_gone() -> None:
    told: list[int] = []
    steps = PlainSteps()
    steps.begin(told.append)
    one, other = optimizer(), optimizer()
    one.step()
    other.step()
    del one
    gc.collect()
    optimizer().step()
    gc.collect()
    optimizer().step()
    other.step()
    steps.end()
    assert told == [0, 1, 0, 0, 1]
