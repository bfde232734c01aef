"""Tests of stages as users write them: compiled, checkpointed, in mixed precision, with any
shapes."""

from datetime import timedelta

import pipeline_models as models
import pytest

from slackline.history import read_directory
from slackline.records import Setting

KINDS = (
    models.checkpointed,
    pytest.param(models.compiled_stages, marks=pytest.mark.slow),
    models.mixed_precision,
    models.several_outputs,
    models.shapes_that_differ,
    models.uneven_microbatches,
    models.gradients_that_are_kept,
    models.evaluation,
    models.autocast_around,
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_stages_of_every_kind_give_the_gradients_of_one_process(job, kind):
    # On a busy machine, torch may compile a rank's stage for minutes while the other rank waits.
    job(2, kind, timeout=timedelta(minutes=9), seconds=580)


def test_a_model_that_torch_has_split_runs_and_one_with_shortcuts_is_refused(job):
    assert job(3, models.traced) == [
        "",
        "",
        "UsageError: stage 2 takes what stage 0 computes: a stage can send to the next one only",
    ]


@pytest.mark.parametrize("rails", ["tcp", "udp"])
def test_shapes_that_differ_from_microbatch_to_microbatch_go_over_wires(job, rails):
    job(2, models.shapes_that_differ, environment={"SLACKLINE_RAILS": rails})


def test_outputs_that_are_not_returned_are_freed_after_their_backward(job):
    returned, dropped = job(2, models.outputs_left)[1]
    assert (returned[0], dropped[0]) == ([16, 1237], None)
    assert returned[1] - dropped[1] == 8
    assert (returned[2], dropped[2]) == (0, 0)


def test_a_schedule_that_the_script_leaves_open_is_taken_from_the_environment(job, tmp_path):
    environment = {
        "SLACKLINE_SCHEDULE": "gpipe",
        "SLACKLINE_SCHEDULE_MEMORY": "4,4",
        "SLACKLINE_DELEGATION": "always",
        "SLACKLINE_TELEMETRY": str(tmp_path),
    }
    used = job(2, models.settings_of_the_environment, environment=environment)
    assert used == [["gpipe", "ready", [4, 4]]] * 2
    settings = [each for each in read_directory(tmp_path) if isinstance(each, Setting)]
    found = {(each.rank, each.name, each.value, each.origin) for each in settings}
    for rank in range(2):
        assert {
            (rank, "schedule", "gpipe", "environment"),
            (rank, "schedule_memory", "4,4", "environment"),
            (rank, "delegation", "always", "environment"),
        } <= found
