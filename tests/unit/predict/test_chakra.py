"""Tests of Chakra execution traces: what is written, what is read back, and what is refused."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from written_runs import Written

from slackline import predict
from slackline.errors import UsageError
from slackline.predict._chakra_schema import message, read_messages, write_message


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> predict.Run:
    directory = tmp_path_factory.mktemp("run")
    Written(steps=6, plan="mesh").write(directory)
    return predict.load(directory)


def attributes(node: Any) -> dict[str, Any]:
    return {each.name: getattr(each, each.WhichOneof("value")) for each in node.attr}


def test_the_bytes_of_a_file_are_those_of_the_schema(tmp_path: Path) -> None:
    """Compare with bytes that follow from the field numbers of et_def.proto, written by hand."""
    path = tmp_path / "hand.0.et"
    with path.open("wb") as file:
        write_message(file, message("GlobalMetadata", version="0.0.4"))
        size = message("AttributeProto", name="comm_size", int64_val=300)
        device = message("AttributeProto", name="is_cpu_op", bool_val=False)
        node = message(
            "Node",
            id=5,
            name="reduce",
            type=7,
            data_deps=[1, 300],
            start_time_micros=2,
            duration_micros=1,
            attr=[size, device],
        )
        write_message(file, node)
    size_bytes = b"\x0a\x09comm_size" + b"\x48\xac\x02"  # fields 1 and 9
    device_bytes = b"\x0a\x09is_cpu_op" + b"\xd8\x01\x00"  # fields 1 and 27
    body = (
        b"\x08\x05"  # id = 1
        b"\x12\x06reduce"  # name = 2
        b"\x18\x07"  # type = 3
        b"\x2a\x03\x01\xac\x02"  # data_deps = 5, packed
        b"\x30\x02"  # start_time_micros = 6
        b"\x38\x01"  # duration_micros = 7
        b"\x52\x0e" + size_bytes + b"\x52\x0e" + device_bytes  # attr = 10
    )
    assert path.read_bytes() == b"\x07\x0a\x050.0.4" + bytes((len(body),)) + body
    assert [type(each).__name__ for each in read_messages(path)] == ["GlobalMetadata", "Node"]


def test_a_run_that_is_written_and_read_is_the_same_run(run: predict.Run, tmp_path: Path) -> None:
    paths = predict.export_chakra(run, tmp_path / "train")
    assert [path.name for path in paths] == [f"train.{rank}.et" for rank in range(4)]
    back = predict.load(tmp_path)
    assert (back.ranks, back.hosts, back.groups, back.policy) == (4, 4, run.groups, "overlap")
    assert back.notes == ()
    # The first step only tells where the second one begins.
    assert len(back.steps) == len(run.steps) - 1
    for mine, theirs in zip(run.steps[1:], back.steps, strict=True):
        for one, other in zip(mine.ranks, theirs.ranks, strict=True):
            assert other.total_ns == pytest.approx(one.total_ns, abs=10_000)
            assert other.backward_ns == pytest.approx(one.backward_ns, abs=1000)
    assert back.link.one_way_ns == run.link.one_way_ns
    assert back.link.rate_bps == pytest.approx(run.link.rate_bps, rel=0.01)
    changes = predict.parse_changes("rate 400Mbit")
    wanted = predict.predict(run, changes, samples=24).p50_ns
    found = predict.predict(back, changes, samples=24).p50_ns
    assert found == pytest.approx(wanted, rel=0.03)


def test_nodes_tell_what_waits_for_what(run: predict.Run, tmp_path: Path) -> None:
    path = predict.export_chakra(run, tmp_path / "train")[2]
    _, *nodes = read_messages(path)
    named = {node.name: node for node in nodes}
    number = {node.id: node.name for node in nodes}

    def needed(name: str) -> set[str]:
        return {number[each] for each in named[name].data_deps}

    assert needed("step 1 all_reduce 0") == {"step 1 backward 0"}
    assert needed("step 1 backward 1") == {"step 1 backward 0"}
    # Layer 0 is in the group that is posted last.
    assert needed("step 2 forward 2") == {"step 2 before", "step 1 all_reduce 2"}
    assert needed("step 2 forward 1") == {"step 2 forward 2", "step 1 all_reduce 1"}
    assert needed("step 2 before") == {"step 1 after"}
    said = attributes(named["step 1 all_reduce 0"])
    assert said == {
        "is_cpu_op": False,
        "comm_type": 0,
        "comm_size": 1 << 19,
        "comm_priority": 2,
        "slackline.plan": "mesh",
    }
    assert (named["step 1 all_reduce 0"].type, named["step 1 before"].type) == (7, 4)


def test_nodes_start_when_all_that_they_need_has_ended(run: predict.Run, tmp_path: Path) -> None:
    for path in predict.export_chakra(run, tmp_path / "train"):
        _, *nodes = read_messages(path)
        ends = {node.id: node.start_time_micros + node.duration_micros for node in nodes}
        for node in nodes:
            for each in node.data_deps:
                assert node.start_time_micros >= ends[each] - 1


def foreign(
    folder: Path,
    ranks: int = 2,
    change: Callable[[int, list[Any]], None] | None = None,
    version: str = "0.0.4",
) -> Path:
    """Write traces as other programs do: one step, computations and two all_reduces."""
    for rank in range(ranks):
        nodes = [
            message("Node", id=1, name="fwd", type=4, start_time_micros=0, duration_micros=4000),
            message("Node", id=2, name="bwd", type=4, start_time_micros=4000, duration_micros=3000),
            reduce_node(3, 7000, 20_000, 2, rank),
            message("Node", id=4, name="bwd", type=4, start_time_micros=7000, duration_micros=2000),
            reduce_node(5, 9000, 39_000, 4, rank),
        ]
        if change is not None:
            change(rank, nodes)
        with (folder / f"other.{rank}.et").open("wb") as file:
            write_message(file, message("GlobalMetadata", version=version))
            for node in nodes:
                write_message(file, node)
    return folder


def reduce_node(number: int, start_us: int, duration_us: int, after: int, rank: int) -> Any:
    return message(
        "Node",
        id=number,
        name=f"all_reduce {number}",
        type=7,
        start_time_micros=start_us + 10 * rank,
        duration_micros=duration_us,
        data_deps=[after],
        attr=[
            message("AttributeProto", name="comm_type", int64_val=0),
            message("AttributeProto", name="comm_size", uint64_val=1 << 19),
        ],
    )


def test_a_trace_of_another_program_is_one_step(tmp_path: Path) -> None:
    run = predict.load(foreign(tmp_path))
    assert (run.ranks, run.policy, len(run.steps)) == (2, "buckets", 1)
    assert [group.nbytes for group in run.groups] == [1 << 19, 1 << 19]
    assert run.steps[0].ranks[0] == predict.Computation(
        before_ns=0, forward_ns=7_000_000, backward_ns=(0, 2_000_000), after_ns=0
    )
    assert run.steps[0].wall_ns == 48_005_000
    # Two ranks exchange the whole buffer twice in 41 ms.
    rate_bps = 8 * 2 * (1 << 19) * (1514 / 1448) / 0.041
    assert run.link.rate_bps == pytest.approx(rate_bps, rel=0.02)
    found = predict.predict(run)
    assert found.p50_ns == pytest.approx(48_000_000, rel=0.03)
    assert found.warnings == (
        "the trace does not name the plan of its all_reduces, which is taken for a ring",
        "the trace has no latency: the rate alone explains the times of its reductions",
        "one step was measured: the spread of computations is not known",
    )


def other_kind(rank: int, nodes: list[Any]) -> None:
    nodes[2].attr[0].int64_val = 7


def no_duration(rank: int, nodes: list[Any]) -> None:
    nodes[2].duration_micros = 0


def no_size(rank: int, nodes: list[Any]) -> None:
    del nodes[2].attr[1]


def cycle(rank: int, nodes: list[Any]) -> None:
    nodes[1].ctrl_deps.append(4)
    nodes[3].data_deps.append(2)


def missing_node(rank: int, nodes: list[Any]) -> None:
    nodes[1].data_deps.append(77)


def twice(rank: int, nodes: list[Any]) -> None:
    nodes[1].id = 1


def later(rank: int, nodes: list[Any]) -> None:
    for node in nodes:
        node.start_time_micros += 1_000_000 * rank


def another_size(rank: int, nodes: list[Any]) -> None:
    nodes[2].attr[1].uint64_val = 4096 * (1 + rank)


def nothing(rank: int, nodes: list[Any]) -> None:
    del nodes[:]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            other_kind,
            "{dir}/other.0.et: node 3 (all_reduce 3) is a collective of the type 7, and only "
            "all_reduces (0) can be simulated",
        ),
        (
            no_duration,
            "{dir}/other.0.et: node 3 (all_reduce 3) has no duration: the network of the run "
            "cannot be calibrated",
        ),
        (
            no_size,
            "{dir}/other.0.et: comm_size of node 3 (all_reduce 3) must be a positive integer, not "
            "None",
        ),
        (cycle, "{dir}/other.0.et: the dependencies of node 2 form a cycle"),
        (missing_node, "{dir}/other.0.et: node 2 depends on node 77, which is missing"),
        (twice, "{dir}/other.0.et: two nodes have the number 1"),
        (
            later,
            "{dir}/other.0.et: all_reduce 0 of step 0 ends 980 ms before it begins in "
            "{dir}/other.1.et: the clocks of the ranks disagree",
        ),
        (
            another_size,
            "{dir}/other.1.et: the 2 all_reduces of step 0 have 520 KiB in all, and those of "
            "{dir}/other.0.et, 2, have 516 KiB, or other sizes in their order",
        ),
        (nothing, "{dir}/other.0.et has no all_reduce in any step"),
    ],
)
def test_a_trace_that_gives_no_prediction_is_refused(
    tmp_path: Path, change: Callable[[int, list[Any]], None], sentence: str
) -> None:
    foreign(tmp_path, change=change)
    with pytest.raises(UsageError) as caught:
        predict.load(tmp_path)
    assert str(caught.value) == sentence.format(dir=tmp_path)


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    foreign(tmp_path, ranks=3)
    (tmp_path / "other.1.et").unlink()
    with pytest.raises(UsageError) as caught:
        predict.load(tmp_path)
    assert str(caught.value) == f"{tmp_path} has no trace of rank 1, other.1.et"


def test_another_version_is_refused(tmp_path: Path) -> None:
    foreign(tmp_path, version="0.1.0")
    with pytest.raises(UsageError) as caught:
        predict.load(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/other.0.et has the version '0.1.0' of Chakra's schema, and slackline reads "
        "'0.0.4'"
    )


@pytest.mark.parametrize(
    ("keep", "sentence"),
    [
        (0, "is empty"),
        (5, ": message 0 is cut: the file is not complete"),
        (30, ": message 2 is cut: the file is not complete"),
    ],
)
def test_a_file_that_is_cut_is_refused(tmp_path: Path, keep: int, sentence: str) -> None:
    path = foreign(tmp_path) / "other.0.et"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UsageError) as caught:
        predict.load(tmp_path)
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).endswith(sentence)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"\xff\xff\xff\xff\xff\xff", ": message 0 is too long: the file is no trace of Chakra"),
        (b"\x03\x0a\x7f\x00", ": message 0 is no message of Chakra"),
    ],
)
def test_a_file_of_other_bytes_is_refused(tmp_path: Path, data: bytes, sentence: str) -> None:
    path = foreign(tmp_path) / "other.1.et"
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        predict.load(tmp_path)
    assert str(caught.value) == f"{path}{sentence}"


def test_a_written_trace_without_a_node_is_refused(run: predict.Run, tmp_path: Path) -> None:
    path = predict.export_chakra(run, tmp_path / "train")[1]
    head, *nodes = read_messages(path)
    with path.open("wb") as file:
        write_message(file, head)
        for node in nodes:
            if node.name != "step 2 backward 1":
                del node.data_deps[:]
                write_message(file, node)
    with pytest.raises(UsageError) as caught:
        predict.load(tmp_path)
    assert str(caught.value) == f"{path}: step 2 has no node 'backward 1'"


def test_the_median_of_written_steps_is_that_of_the_run(run: predict.Run, tmp_path: Path) -> None:
    predict.export_chakra(run, tmp_path / "train")
    measured = statistics.median(predict.load(tmp_path).wall_ns)
    assert measured == pytest.approx(statistics.median(run.wall_ns), rel=0.03)
