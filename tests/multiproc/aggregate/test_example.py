"""Tests that the gallery's training goes through an aggregation node, and says so without one."""

import re

import pytest
from example_ranks import asked, example


def prepare():
    """Import the modules that the example imports."""
    import torch.nn.parallel  # noqa: F401


def program(rank, size, path):
    return example(rank, size, path)


@pytest.mark.slow
def test_the_example_learns_while_the_node_adds_its_gradients(job, store, nodes):
    node = nodes()
    environment = node.environment(**asked(store, "aggregated_training.py"))
    (printed, message), other = job(2, program, bare=True, environment=environment)
    assert (message, other) == ("", ["", ""])
    assert node.interrupt() == 0
    losses, plan = printed.splitlines()
    found = re.fullmatch(r"loss (\d+\.\d+), then (\d+\.\d+)", losses)
    assert found is not None
    assert 0 < float(found[2]) < float(found[1]) * 0.9
    assert plan.startswith("132352 bytes of gradients a step by the plan star: ")
    added = re.search(r"over after \d+ operations, ([\d.]+) MiB added", node.log)
    assert added is not None, node.log
    steps, ranks = 60, 2
    assert float(added[1]) * 2**20 >= ranks * steps * 132352 * 0.999  # three digits are printed


def test_the_example_asks_for_a_node(job, store):
    environment = asked(store, "aggregated_training.py") | {"SLACKLINE_AGGREGATOR": ""}
    sentence = "start `slackline aggregate` and set SLACKLINE_AGGREGATOR to its address"
    assert job(1, program, bare=True, environment=environment) == [["", sentence]]
