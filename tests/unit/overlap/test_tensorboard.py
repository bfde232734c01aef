"""Tests of the figures that a callback hands to a logger of training, with TensorBoard as one."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from slackline.records import StepSummary


def test_the_figures_of_a_step_have_the_units_that_their_names_say():
    step = StepSummary(
        rank=0,
        step=3,
        time_ns=1,
        wall_ns=8_000_000,
        exposed_ns=2_000_000,
        hidden_ns=3_500_000,
        reduced_bytes=4096,
        parameters=2,
        waited=1,
        forward_ns=1_000_000,
        backward_ns=4_000_000,
        optimizer_ns=500_000,
    )
    assert step.scalars() == {
        "wall_ms": 8.0,
        "forward_ms": 1.0,
        "backward_ms": 4.0,
        "optimizer_ms": 0.5,
        "exposed_ms": 2.0,
        "hidden_ms": 3.5,
        "exposed_share": 0.25,
        "reduced_bytes": 4096.0,
    }


def test_the_figures_of_every_step_come_back_from_the_file_of_tensorboard(
    wrap, chain, batch, tmp_path
):
    told = []
    with SummaryWriter(str(tmp_path)) as board:

        def show(step):
            told.append(step)
            for name, value in step.scalars().items():
                board.add_scalar(f"slackline/{name}", value, step.step)

        model, optimizer, _ = wrap(chain, on_step=show)
        for _ in range(3):
            model(batch).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        model.close()
    read = EventAccumulator(str(tmp_path)).Reload()
    assert [step.step for step in told] == [0, 1, 2]
    for name in told[0].scalars():
        found = [(event.step, event.value) for event in read.Scalars(f"slackline/{name}")]
        expected = [(step.step, pytest.approx(step.scalars()[name])) for step in told]
        assert found == expected, name
