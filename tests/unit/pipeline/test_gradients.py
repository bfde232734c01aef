"""Tests that gradients are added in microbatch order, whatever the order of arrival."""

import itertools

import pytest
import torch
from torch import nn

from slackline.pipeline._gradients import Gradients

PARTS = [torch.tensor([1e8, 1.0]), torch.tensor([1.0, 1e-8]), torch.tensor([-1e8, 3.0])]


class Reducer:
    require_backward_grad_sync = False

    def __init__(self):
        self.events = []

    def expect_gradients(self):
        self.events.append("expect")

    def complete_gradients(self, parameters):
        self.events += [tuple(each.grad.tolist()) for each in parameters]


def add(gradients, parameter, microbatch):
    with gradients.turn(microbatch):
        part = PARTS[microbatch].clone()
        parameter.grad = part if parameter.grad is None else parameter.grad + part


def in_order():
    return (PARTS[0] + PARTS[1]) + PARTS[2]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_bits_do_not_depend_on_the_order_of_arrival(order):
    parameter = nn.Parameter(torch.zeros(2))
    gradients = Gradients(3, scale=False, reducer=None)
    for _ in range(2):
        parameter.grad = None
        gradients.begin([parameter])
        for microbatch in order:
            add(gradients, parameter, microbatch)
        assert torch.equal(parameter.grad, in_order())


def test_a_reduction_starts_once_when_the_last_part_is_there_and_scaled():
    parameter, reducer = nn.Parameter(torch.zeros(2)), Reducer()
    gradients = Gradients(3, scale=True, reducer=reducer)
    gradients.begin([parameter])
    add(gradients, parameter, 0)
    add(gradients, parameter, 2)
    assert reducer.events == ["expect"]
    add(gradients, parameter, 1)
    assert reducer.events == ["expect", tuple((in_order() / 3).tolist())]


def test_within_a_turn_that_completes_each_parameter_can_go_first():
    first, second, reducer = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1)), Reducer()
    gradients = Gradients(1, scale=True, reducer=reducer)
    gradients.begin([first, second])
    with gradients.turn(0):
        first.grad = torch.ones(1)
        gradients.complete([first])
        assert reducer.events == ["expect", (1.0,)]
        second.grad = torch.full((1,), 2.0)
    assert reducer.events == ["expect", (1.0,), (2.0,)]


def test_what_was_there_before_is_added_to_and_not_scaled_again():
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([5.0, 7.0])
    gradients = Gradients(3, scale=True, reducer=None)
    gradients.begin([parameter])
    for microbatch in range(3):
        add(gradients, parameter, microbatch)
    assert torch.equal(parameter.grad, torch.tensor([5.0, 7.0]) + in_order() / 3)


def test_a_step_that_is_not_to_be_reduced_is_not():
    parameter, reducer = nn.Parameter(torch.zeros(2)), Reducer()
    gradients = Gradients(1, scale=True, reducer=reducer)
    gradients.begin([parameter], reduces=False)
    add(gradients, parameter, 0)
    assert reducer.events == []
