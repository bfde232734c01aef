"""Tests that torch's analyser of flight recorders names the ranks that hold up real jobs."""

import os
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from flight_analysis import analysed, outcomes
from rank_marks import mark, wait_for_marks
from torch import distributed as dist
from torch import nn

from slackline.backend import dump_flight_recorder
from slackline.backend.flight._torch_format import library
from slackline.errors import MismatchError, TimeoutError, UsageError
from slackline.overlap import DataParallel

SHORT = timedelta(milliseconds=300)


def on_request(dumps):
    """Return the environment of ranks that record, and that write to `dumps` by their own calls."""
    return {"SLACKLINE_FLIGHT_RECORDER_ENTRIES": "500", "DUMPS": str(dumps)}


def start(rank, size, path):
    dist.init_process_group("slackline", init_method=f"file://{path}", rank=rank, world_size=size)


def without_rank_2(rank, size, path):
    start(rank, size, path)
    for _ in range(3):
        dist.all_reduce(torch.ones(10))
    if rank == 2:  # at work elsewhere, until the others have given up
        wait_for_marks("has given up", [0, 1])
    else:
        dist.group.WORLD.set_timeout(SHORT)
        with pytest.raises(TimeoutError):
            dist.all_reduce(torch.ones(1000))
        mark("has given up")
    dist.destroy_process_group()


def test_the_analyser_names_the_rank_that_does_not_call_a_collective(job, tmp_path, caplog):
    dumps = tmp_path / "dumps"
    job(3, without_rank_2, bare=True, environment={"SLACKLINE_FLIGHT_RECORDER": str(dumps)})
    assert sorted(path.name for path in dumps.iterdir()) == [
        f"slackline_trace_rank_{rank}" for rank in range(3)
    ]
    *before, hang = analysed(dumps).collectives
    assert [(each.collective_seq_id, each.missing_ranks) for each in before] == [
        (0, None),
        (1, None),
        (2, None),
    ]
    assert (hang.collective_seq_id, hang.missing_ranks) == (3, {2})
    assert (hang.collective_name, hang.input_sizes) == (f"{library()}:all_reduce", [[1000]])
    assert (hang.pg_desc, hang.collective_state) == ("0:default_pg", "started")
    assert "without_rank_2" in {frame["name"] for frame in hang.collective_frames}
    assert "missing ranks: {2}" in caplog.text


def late_message(rank, size, path):
    start(rank, size, path)
    if rank == 2:
        work = dist.irecv(torch.ones(5), 0, tag=7)
        dist.recv(torch.ones(5), 0, tag=8)
        with pytest.raises(TimeoutError):
            work.wait(SHORT)
        dump_flight_recorder(Path(os.environ["DUMPS"]))
        mark("has dumped")
    else:
        if rank == 0:
            dist.send(torch.ones(5), 2, tag=8)
        dump_flight_recorder(os.environ["DUMPS"])
        mark("has dumped")
    wait_for_marks("has dumped", range(size))
    dist.group.WORLD.abort()


def test_the_analyser_names_the_rank_that_does_not_send_a_message(job, tmp_path):
    dumps = tmp_path / "dumps"
    job(3, late_message, bare=True, environment=on_request(dumps))
    late, sent = sorted(outcomes(dumps))
    assert late == ("0 0->2 tag 7", f"{library()}:recv 1<-0", 0, {0})
    assert (sent[0], sent[2], sent[3]) == ("0 0->2 tag 8", 0, None)


def without_a_gradient(rank, size, path):
    start(rank, size, path)
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    model = DataParallel(layers, optimizer, group_bytes=0)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    model.synchronize()
    if rank != 1:
        model.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
    dump_flight_recorder(os.environ["DUMPS"])
    mark("has dumped")
    wait_for_marks("has dumped", range(size))
    model.abandon()
    dist.group.WORLD.abort()


def test_the_analyser_names_the_rank_whose_gradients_do_not_come(job, tmp_path):
    dumps = tmp_path / "dumps"
    job(3, without_a_gradient, bare=True, environment=on_request(dumps))
    tagged = [each for each in outcomes(dumps) if each[0] == "0 tagged"]
    assert {name for _, name, _, _ in tagged} == {f"{library()}:all_reduce"}
    late = [number for *_, number, missing in tagged if missing is not None]
    assert [missing for *_, missing in tagged if missing is not None] == [{1}] * 4
    # The high bits of a number count the reductions of a gradient, the low 24 bits are its tag.
    assert [number >> 24 for number in late] == [1] * 4
    assert len({number & 0xFFFFFF for number in late}) == 4


def different_sizes(rank, size, path):
    start(rank, size, path)
    with pytest.raises(MismatchError):
        dist.all_reduce(torch.ones(3 + rank))
    dist.destroy_process_group()


def test_the_analyser_shows_two_calls_that_do_not_match(job, tmp_path):
    dumps = tmp_path / "dumps"
    job(2, different_sizes, bare=True, environment={"SLACKLINE_FLIGHT_RECORDER": str(dumps)})
    (call,) = analysed(dumps).collectives
    assert not call.pass_check
    (other,) = call.mismatch_collectives.values()
    assert sorted([call.input_sizes, other.input_sizes]) == [[[3]], [[4]]]


def unasked(rank, size, path):
    with pytest.raises(UsageError) as caught:
        dump_flight_recorder(path)
    start(rank, size, path)
    with pytest.raises(UsageError) as off:
        dump_flight_recorder(path)
    dist.destroy_process_group()
    return str(caught.value), str(off.value)


def test_a_dump_without_a_recorder_says_how_to_switch_it_on(job):
    assert job(1, unasked, bare=True) == [
        [
            "there is no flight recorder: this process has no open group",
            "the flight recorder is off: set SLACKLINE_FLIGHT_RECORDER to a directory, or "
            "SLACKLINE_FLIGHT_RECORDER_ENTRIES to a number, before the first group opens",
        ]
    ]
