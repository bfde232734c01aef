"""Tests of settings that are refused and of errors that end a step on every rank, naming stage,
operation and value."""

import pipeline_failures as models
import pytest
import torch
from pipeline_work import WIDTH
from torch import nn


def torchs_error(layer, given):
    """Return the error that torch raises of a layer's input; its text varies with torch."""
    with pytest.raises(RuntimeError) as refused:
        layer(given)
    return f"RuntimeError: {refused.value}"


REFUSED = [
    "UsageError: n_microbatches must be a positive integer, not 0",
    "UsageError: a stage must be a torch.distributed.pipelining.PipelineStage, not a Sequential",
    'UsageError: there is no schedule "2f2b"; schedules are auto, ready, slack, adaptra, gpipe, '
    "1f1b, zb-h1, zb-h2, zero-bubble, interleaved, zb-v, dualpipe-v",
    'UsageError: there is no policy "eager"; policies are fixed, ready, adaptra, auto',
    "UsageError: stage 0, F0: needs 1 activation, but the cap is 0",
    "UsageError: memory must have one value for each of the 2 stages, not 1",
    "UsageError: gpipe, 2 stages, 4 microbatches: stage 0, F2: needs 3 activations, but the cap "
    "is 2.",
    "UsageError: stage 1 is on rank 1, but zb-v, 2 stages on 1 rank, 4 microbatches places it "
    "on rank 0",
    "UsageError: gpipe, 3 stages, 4 microbatches: the plan has 3 stages, the scenario 2",
    "UsageError: gpipe, 2 stages, 4 microbatches: the plan has 4 microbatches, the scenario 5",
    "UsageError: csv, 2 stages, 2 microbatches: stage 0, B0: waits for 1B0, which stands behind "
    "1F1, which waits for 0F1, which stands behind 0B0: no one can go on",
    "UsageError: stage 0 is on rank 0 and on rank 1",
    "UsageError: the pipeline has 3 stages, but no rank has stage 2",
    "MismatchError: rank 1 has microbatches 5, rank 0 4",
]


def test_what_cannot_be_is_refused_with_the_value(job):
    for rank in job(2, models.bad_terms):
        assert [each.splitlines()[0] for each in rank] == REFUSED


def test_a_group_of_another_backend_is_refused(job):
    wanted = "UsageError: the process group must be of backend slackline, not gloo"
    assert job(2, models.on_gloo, bare=True) == [wanted] * 2


@pytest.mark.parametrize(
    ("what", "culprit", "step", "error", "notes"),
    [
        (
            models.few_samples,
            0,
            1,
            "UsageError: a batch of shape [3, 12] gives 3 microbatches, not 4",
            [],
        ),
        (
            models.no_inputs,
            0,
            1,
            "UsageError: the first stage's rank must give step its inputs",
            [],
        ),
        (
            models.wrong_shape,
            1,
            0,
            torchs_error(nn.Linear(WIDTH + 1, WIDTH), torch.ones(2, WIDTH)),
            ["while rank 1 computed stage 1, F0"],
        ),
        (
            models.wrong_loss,
            2,
            0,
            "UsageError: stage 2, F0: loss_fn must return a tensor of one element, not [2, 12]",
            ["while rank 2 computed stage 2, F0"],
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_ends_a_step_on_one_rank_ends_it_on_all(job, what, culprit, step, error, notes):
    found = job(3, what)
    reason = error.partition(": ")[2]
    for rank, (told, where, after) in enumerate(found):
        assert after.startswith("ClosedError: the schedule ended: step ")
        assert after.endswith(f" failed with {told}")
        if rank == culprit:
            assert (told, where) == (error, notes)
        else:
            assert told.startswith("PeerError: rank ")
            assert f"rank {culprit} has left step {step} of a pipeline: {reason}" in told
            assert all(each.startswith(f"while stage {rank} waited for stage ") for each in where)


@pytest.mark.parametrize(
    "rails", ["tcp", *(pytest.param(rails, marks=pytest.mark.slow) for rails in ("shm", "udp"))]
)
def test_the_death_of_a_rank_in_a_step_reaches_every_rank(job, rails):
    told = job(4, models.a_rank_dies, dying=(1,), environment={"SLACKLINE_RAILS": rails})
    assert told == ["PeerError", None, "PeerError", "PeerError"]


def test_a_rank_that_waits_too_long_names_what_for(job):
    told = job(3, models.nobody_sends, bare=True)
    limit = "Timed out after 0:00:05: nothing came from"
    own = {1: f"TimeoutError: rank 1 {limit} 0F0, 2B0", 2: f"TimeoutError: rank 2 {limit} 1F0"}
    assert any(told[rank] == own[rank] for rank in own)
    for rank in own:
        assert told[rank] == own[rank] or told[rank].startswith("PeerError: ")


def test_an_interrupted_rank_ends_and_so_do_the_others(job):
    told = job(3, models.interrupted, bare=True)
    assert told == ["PeerError", "KeyboardInterrupt", "PeerError"]


def test_a_rank_that_waits_can_be_interrupted(job):
    told = job(2, models.waits_and_is_interrupted, bare=True)
    assert told == ["PeerError", "KeyboardInterrupt"]


def test_a_closed_schedule_takes_no_step_and_leaves_the_group_to_others(job):
    wanted = "ClosedError: the schedule ended: it was closed"
    assert job(2, models.closed) == [wanted] * 2
