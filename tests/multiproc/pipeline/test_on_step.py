"""Tests of the callback that receives the record of each step of a pipeline."""

import time

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage

from slackline.errors import ClosedError, PeerError
from slackline.pipeline import Schedule, ScheduleConfig
from slackline.pipeline._record import telemetry_of
from slackline.records import open_core_times

WORK_NS = 1_000_000


class Busy(nn.Linear):
    """A linear layer whose forward pass keeps its thread on a core for at least 1 ms.

    The kernel counts the time of a running thread at each tick, and when the thread asks for it.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        began_ns = time.thread_time_ns()
        while time.thread_time_ns() - began_ns < WORK_NS:
            pass
        return super().forward(x)


def schedule_with(on_step, rank, size):
    stage = PipelineStage(Busy(6, 6), rank, size, torch.device("cpu"))
    config = ScheduleConfig(on_step=on_step)
    return Schedule(stage, 2, nn.functional.mse_loss, schedule="1f1b", config=config)


def step(schedule, rank, *, training=True):
    x = torch.ones(4, 6)
    run = schedule.step if training else schedule.eval
    run(*([x] if rank == 0 else []), target=x if rank == 1 else None)


def told_of(rank, size):
    told = []
    schedule = schedule_with(told.append, rank, size)
    step(schedule, rank)
    step(schedule, rank, training=False)
    step(schedule, rank)
    assert told == list(schedule.records)
    assert [record.step for record in told] == [0, 2]
    for record in told:
        figures = record.scalars()
        assert figures["wall_ms"] == record.wall_ns / 1e6
        assert figures["computing_ms"] == record.computing_ns / 1e6
        assert figures["waiting_share"] == record.waiting_ns / record.wall_ns
        written = telemetry_of(record, rank)
        if open_core_times() is None:
            assert (written.run_ns, written.run_delay_ns) == (None, None)
        else:
            assert (written.run_ns, written.run_delay_ns) == record.core_times
            assert written.run_ns >= 2 * WORK_NS  # two microbatches
            assert written.run_delay_ns >= 0
    schedule.close()
    names = ("sent_bytes", "received_bytes")
    return [[record.scalars()[name] for name in names] for record in told]


def test_each_training_step_is_told_with_its_figures(job):
    body = 2 * 64.0  # two microbatches of 48 bytes each, padded to 64
    assert job(2, told_of) == [[[body, body]] * 2] * 2


class UserError(Exception):
    pass


def failing(rank, size):
    def fail(record):
        raise UserError("the logger is full")

    schedule = schedule_with(fail if rank == 0 else None, rank, size)
    if rank == 1:  # rank 0 is the last to end the step
        step(schedule, rank)
        with pytest.raises(PeerError) as caught:
            step(schedule, rank)
        return str(caught.value)
    with pytest.raises(UserError, match="the logger is full"):
        step(schedule, rank)
    with pytest.raises(ClosedError) as ended:
        step(schedule, rank)
    return str(ended.value)


def test_an_error_of_the_callback_ends_the_schedule_on_every_rank(job):
    first, other = job(2, failing)
    assert first == "the schedule ended: step 0 failed with UserError: the logger is full"
    assert "rank 0 has left step 0 of a pipeline: the logger is full" in other
