"""Tests of the flight recorder on groups in memory: its entries, and torch's analysis of them."""

import ctypes
import pickle
import threading
from datetime import timedelta

import pytest
from flight_analysis import outcomes

from slackline.backend.flight import FlightRecorder, RecordedNic, _torch_format
from slackline.backend.flight._torch_format import library, name_of
from slackline.errors import MismatchError, UsageError
from slackline.testing import LoopbackFabric
from slackline.wire import DType, ReduceOp

FLOAT = DType.FLOAT32
SIZE = 3


class Fabric:
    """A Nic of one rank that opens the rank's group of a LoopbackFabric."""

    def __init__(self, group):
        self.group = group

    def open_group(self, store, rank, size, **named):
        return self.group

    def close(self):
        self.group.close()


def run(function, *, entries=None, members=(0, 1, 2), folder=None):
    """Run `function(group, memory)` on three ranks with recorders; return the recorders."""
    fabric = LoopbackFabric(SIZE, timeout=timedelta(seconds=20))
    recorders = [FlightRecorder(entries, folder) for _ in range(SIZE)]
    errors = []

    def be(rank):
        nic = RecordedNic(Fabric(fabric.groups[rank]), recorders[rank])
        limit = timedelta(seconds=20)
        group = nic.open_group(None, rank, SIZE, timeout=limit, members=members)
        group.record.name = "0"
        memory = ctypes.create_string_buffer(4096)
        try:
            function(group, ctypes.addressof(memory))
        except BaseException as error:
            errors.append(error)
            group.abort(f"the test failed: {error}")

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(SIZE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return recorders


def all_kinds(group, memory):
    parts = [memory + 64 * rank for rank in range(SIZE)]
    away = memory + 1024
    group.all_reduce(memory, memory, 4, FLOAT, ReduceOp.SUM, blocking=True)
    group.reduce_scatter(parts, [2] * SIZE, away, FLOAT, ReduceOp.SUM).wait()
    group.reduce_scatter(parts, [1, 2, 3], away, FLOAT, ReduceOp.SUM).wait()
    group.all_gather(away, parts, [2] * SIZE, FLOAT).wait()
    group.all_gather(away, parts, [3, 2, 1], FLOAT).wait()
    group.broadcast(memory, 5, FLOAT, 1).wait()
    group.reduce(memory, away, 5, FLOAT, ReduceOp.SUM, 2).wait()
    group.gather(away, parts if group.rank == 0 else [], [2] * SIZE, FLOAT, 0).wait()
    group.scatter(parts if group.rank == 0 else [], away, [2] * SIZE, FLOAT, 0).wait()
    others = [memory + 2048 + 64 * rank for rank in range(SIZE)]
    group.all_to_all(parts, [2] * SIZE, others, [2] * SIZE, FLOAT).wait()
    group.barrier().wait()
    tags = [7, 5] if group.rank == 1 else [5, 7]  # ranks may post tagged reductions in any order
    posted = [group.all_reduce(memory, memory, 4, FLOAT, ReduceOp.SUM, tag=tag) for tag in tags]
    for transfer in posted:
        transfer.wait()
    if group.rank == 0:
        group.send(memory, 4, FLOAT, 2, 0).wait()
    if group.rank == 2:
        group.recv(memory, 4, FLOAT, 0, 0).wait()


def test_torchs_analyser_matches_operations_of_every_kind(tmp_path):
    for recorder in run(all_kinds):
        recorder.dump(tmp_path / "dumps")
    plain = [
        *("all_reduce", "reduce_scatter", "reduce_scatter_v", "all_gather", "all_gather_v"),
        *("broadcast", "reduce", "gather", "scatter", "all_to_all", "barrier"),
    ]
    found = outcomes(tmp_path / "dumps")
    (message,) = [each for each in found if "->" in each[0]]
    found.remove(message)
    assert (message[0], message[2], message[3]) == ("0 0->2", 0, None)
    assert message[1] in (
        f"{library()}:send 0->1",
        f"{library()}:recv 1<-0",
    )  # the name of one of the two
    assert sorted(found) == sorted(
        [
            *[
                ("0", f"{library()}:{name_of(kind)}", number, None)
                for number, kind in enumerate(plain)
            ],
            ("0 tagged", f"{library()}:all_reduce", 5, None),
            ("0 tagged", f"{library()}:all_reduce", 7, None),
        ]
    )


def test_an_operation_that_the_analyser_does_not_know_has_the_name_of_nccls_recorder(monkeypatch):
    monkeypatch.setattr(_torch_format, "_analyser", lambda: '{"all_gather", "all_reduce_barrier"}')
    names = {kind: name_of(kind) for kind in ("all_gather", "all_gather_v", "barrier")}
    assert names == {
        "all_gather": "all_gather",
        "all_gather_v": "_broadcast_oop",
        "barrier": "all_reduce_barrier",
    }


def test_ranks_are_named_by_their_place_in_the_job(tmp_path):
    recorders = run(all_kinds, members=(4, 9, 6))
    paths = [recorder.dump(tmp_path) for recorder in recorders]
    assert [path.name for path in paths] == [f"slackline_trace_rank_{rank}" for rank in (4, 9, 6)]
    dump = pickle.loads(paths[2].read_bytes())
    assert dump["pg_config"]["0"] == {"name": "0", "desc": "undefined", "ranks": "[4, 6, 9]"}
    message = dump["entries"][-1]
    assert message["process_group"] == ("0 4->6", "undefined")
    assert message["profiling_name"] == f"{library()}:recv 1<-0"
    assert dump["pg_config"]["0 4->6"]["ranks"] == "[4, 6]"


def test_the_ring_keeps_the_latest_operations():
    def barriers(group, memory):
        for _ in range(5):
            group.barrier().wait()

    for recorder in run(barriers, entries=2):
        found = recorder.contents()["entries"]
        assert [(row["record_id"], row["collective_seq_id"]) for row in found] == [(3, 3), (4, 4)]
        assert [row["state"] for row in found] == ["completed"] * 2


def test_a_call_that_the_engine_refuses_is_not_recorded():
    def refused(group, memory):
        with pytest.raises(UsageError):
            group.send(memory, 1, FLOAT, 9, 3)  # there is no rank 9
        group.barrier().wait()

    for recorder in run(refused):
        (row,) = recorder.contents()["entries"]
        name = f"{library()}:{name_of('barrier')}"
        assert (row["profiling_name"], row["collective_seq_id"]) == (name, 0)


def test_an_operation_that_fails_after_its_post_is_dumped_with_its_error(tmp_path):
    ended = threading.Barrier(SIZE)

    def differing(group, memory):
        with pytest.raises(MismatchError):
            group.all_reduce(memory, memory, 4 + group.rank, FLOAT, ReduceOp.SUM).wait()
        ended.wait()

    recorders = run(differing, folder=tmp_path)
    for recorder in recorders:
        recorder.close()
    for rank in range(SIZE):
        dump = pickle.loads((tmp_path / f"slackline_trace_rank_{rank}").read_bytes())
        (row,) = dump["entries"]
        assert row["error"].startswith("MismatchError: ")
        assert (row["state"], row["retired"]) == ("started", True)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UsageError, match=r"the flight recorder cannot make the folder .*file/dumps"
    ):
        FlightRecorder(None, tmp_path / "file" / "dumps")


def test_a_recorder_without_a_group_has_nothing_to_dump(tmp_path):
    with pytest.raises(UsageError) as caught:
        FlightRecorder(None, None).dump(tmp_path)
    assert str(caught.value) == "there is nothing to dump: this process has opened no group yet"


def test_operations_that_have_not_completed_show_their_callers():
    began = threading.Barrier(SIZE)

    def first_waits(group, memory):
        group.barrier().wait()
        if group.rank == 0:
            transfer = group.all_reduce(memory, memory, 4, FLOAT, ReduceOp.SUM)
            seen.append(group._recorder.contents())
        began.wait()
        if group.rank != 0:
            transfer = group.all_reduce(memory, memory, 4, FLOAT, ReduceOp.SUM)
        transfer.wait()

    seen = []
    run(first_waits)
    completed, pending = seen[0]["entries"]
    assert (completed["state"], completed["frames"]) == ("completed", [])
    assert pending["state"] == "started"
    assert pending["frames"][0]["name"] == "first_waits"
    assert pending["frames"][0]["filename"] == __file__
    assert pending["frames"][0]["line"] > 100
