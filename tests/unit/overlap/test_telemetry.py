"""Tests of the reported cost of a step: to the wrapper, to a callback and to a file."""

import pytest
import torch

from slackline.history import read_directory
from slackline.records import RunSummary, StateHash


def train(model, optimizer, batch, steps):
    for _ in range(steps):
        model(batch).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_step_is_told_when_its_last_parameter_is_done(wrap, chain, batch):
    told = []
    model, optimizer, group = wrap(chain, on_step=told.append)
    train(model, optimizer, batch, 1)
    assert told == []
    assert model.last_step is None
    group.complete(0, 1, 2, 3)
    model(batch)
    (step,) = told
    assert model.last_step is step
    assert (step.step, step.parameters, step.waited) == (0, 6, 2)
    assert step.reduced_bytes == 4 * (17 + 5) * 3
    # The forward pass after the step also waits, so that a rank without a core may expose more.
    assert step.exposed_ns > 0
    assert step.wall_ns > 0


def test_a_step_whose_sums_are_there_costs_nothing(wrap, chain, batch):
    model, optimizer, group = wrap(chain)
    group.immediate = True
    train(model, optimizer, batch, 1)
    assert model.last_step.exposed_ns == 0


def test_a_wait_for_a_group_counts_its_parameters(wrap, chain, batch):
    model, optimizer, group = wrap(chain, group_bytes=1 << 20)
    train(model, optimizer, batch, 1)
    model(batch)
    assert len(group.waits) == 1
    assert (model.last_step.parameters, model.last_step.waited) == (6, 6)


def test_steps_and_their_sum_go_to_the_file(wrap, chain, batch, tmp_path):
    model, optimizer, _ = wrap(chain, telemetry=tmp_path)
    train(model, optimizer, batch, 3)
    model.close()
    setting, *steps, run = read_directory(tmp_path)
    assert (setting.name, setting.value, setting.origin) == ("group_bytes", "0B", "argument")
    assert [step.step for step in steps] == [0, 1, 2]
    assert run == model.run_summary()
    assert isinstance(run, RunSummary)
    assert run.steps == 3
    assert run.exposed_ns == sum(step.exposed_ns for step in steps)


def test_the_log_shows_steps_without_a_file(wrap, chain, batch, monkeypatch, capsys):
    monkeypatch.setenv("SLACKLINE_LOG", "step=debug")
    model, optimizer, _ = wrap(chain)
    train(model, optimizer, batch, 3)
    model.close()
    lines = capsys.readouterr().err.splitlines()
    begins = [f"slackline rank 0 step: step {number} of optimizer 0: " for number in range(3)]
    assert [line[: len(begins[0])] for line in lines] == begins


def test_the_last_step_of_a_script_that_does_not_close_is_in_the_file(wrap, chain, batch, tmp_path):
    """Call the handler of the interpreter's exit while the last step's updates are pending."""
    model, optimizer, _ = wrap(chain, telemetry=tmp_path)
    train(model, optimizer, batch, 3)
    assert model.last_step.step == 1
    model._report.end()
    _, *steps, run = read_directory(tmp_path)
    assert [step.step for step in steps] == [0, 1, 2]
    assert run.steps == 3


def test_the_environment_names_the_directory(wrap, chain, batch, tmp_path, monkeypatch):
    monkeypatch.setenv("SLACKLINE_TELEMETRY", str(tmp_path))
    model, optimizer, _ = wrap(chain)
    train(model, optimizer, batch, 2)
    model.close()
    assert len(list(read_directory(tmp_path))) == 4


@pytest.mark.parametrize(
    ("variable", "value", "origin"), [("", "", "default"), ("64KiB", "65536B", "environment")]
)
def test_the_environment_gives_the_size_of_groups_that_the_script_leaves_open(
    wrap, chain, tmp_path, monkeypatch, variable, value, origin
):
    monkeypatch.setenv("SLACKLINE_GROUP_BYTES", variable)
    model, *_ = wrap(chain, group_bytes=None, telemetry=tmp_path)
    assert model.group_bytes == (65536 if variable else 1 << 20)
    model.close()
    setting, _ = read_directory(tmp_path)
    assert (setting.name, setting.value, setting.origin) == ("group_bytes", value, origin)


def test_clipping_counts_as_waiting(wrap, chain, batch):
    model, optimizer, _ = wrap(chain)
    model(batch).square().sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    assert model.last_step.waited == 6


@pytest.mark.parametrize("ended", ["close", "abandon"])
def test_the_hash_of_the_last_state_goes_to_the_file_if_asked_for(
    wrap, chain, batch, tmp_path, monkeypatch, ended
):
    monkeypatch.setenv("SLACKLINE_STATE_HASH", "end")
    model, optimizer, _ = wrap(chain, telemetry=tmp_path)
    train(model, optimizer, batch, 3)
    expected = model.hash
    getattr(model, ended)()
    hashes = [each for each in read_directory(tmp_path) if isinstance(each, StateHash)]
    # The state of a training that is given up has no meaning.
    wanted = [(2, 0, 1, expected)] if ended == "close" else []
    assert [(each.step, each.part, each.parts, each.hash) for each in hashes] == wanted
