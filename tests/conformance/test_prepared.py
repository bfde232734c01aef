"""Tests of operations as data: prepared once and posted many times, on every kind of group."""

from collections.abc import Callable
from datetime import timedelta
from threading import Thread

import numpy as np
import pytest
from conformance_vectors import at

from slackline.backend.flight import FlightRecorder, RecordedGroup
from slackline.backend.flight._entries import GroupRecord
from slackline.errors import ClosedError, UsageError
from slackline.nic import CALLBACK_TAGS, Group, Kind, Operation, callback_tag, nested_callback_tag
from slackline.testing import LoopbackFabric, run_ranks
from slackline.wire import DType, ReduceOp

Body = Callable[[Group], None]


def native(body: Body) -> None:
    run_ranks(2, body)


def recorded(body: Body) -> None:
    def each(group: Group) -> None:
        recorder = FlightRecorder(100, None)
        try:
            body(RecordedGroup(group, GroupRecord(group.rank, (0, 1)), recorder))
        finally:
            recorder.close()

    run_ranks(2, each)


def loopback(body: Body) -> None:
    faults: list[BaseException] = []

    def each(group: Group) -> None:
        try:
            body(group)
        except BaseException as error:
            faults.append(error)
            group.abort(str(error))

    threads = [Thread(target=each, args=(group,)) for group in LoopbackFabric(2).groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]


@pytest.fixture(params=[native, recorded, loopback])
def run(request: pytest.FixtureRequest) -> Callable[[Body], None]:
    chosen: Callable[[Body], None] = request.param
    return chosen


def test_a_prepared_reduction_is_posted_again_and_on_other_memory(
    run: Callable[[Body], None],
) -> None:
    def body(group: Group) -> None:
        first, second = np.ones(5, np.float32), np.full(5, 2, np.float32)
        prepared = group.prepare(
            Operation.all_reduce(at(first), at(first), 5, DType.FLOAT32, ReduceOp.SUM)
        )
        prepared.post(blocking=True)
        prepared.post(timeout=timedelta(seconds=20)).wait()
        prepared.post(at=at(second), priority=3).wait()
        assert (first == 4).all()
        assert (second == 4).all()

    run(body)


def test_a_prepared_reduction_to_a_root_leaves_the_memory_of_others(
    run: Callable[[Body], None],
) -> None:
    def body(group: Group) -> None:
        given = np.full(3, group.rank + 1, np.int64)
        operation = Operation.reduce(0, 0, 3, DType.INT64, ReduceOp.SUM, 1)
        group.prepare(operation).post(at=at(given), blocking=True)
        assert given.tolist() == [3 if group.rank == 1 else 1] * 3

    run(body)


def test_messages_and_parts_are_prepared_too(run: Callable[[Body], None]) -> None:
    def body(group: Group) -> None:
        peer, taken, sent = 1 - group.rank, np.zeros(2, np.int32), np.zeros(2, np.int32)
        gathered = np.zeros(2, np.int32)
        receive = group.prepare(Operation.recv(at(taken), 2, DType.INT32, peer, 7))
        send = group.prepare(Operation.send(at(sent), 2, DType.INT32, peer, 7, priority=4))
        places = [at(gathered), at(gathered[1:])]
        gather = group.prepare(Operation.all_gather(at(sent), places, [1, 1], DType.INT32))
        for number in range(1, 4):
            sent[:] = number * (group.rank + 1)
            posted = [receive.post(), send.post(), gather.post(priority=1)]
            for transfer in posted:
                transfer.wait()
            assert taken.tolist() == [number * (peer + 1)] * 2
            assert gathered.tolist() == [number, 2 * number]

    run(body)


def test_identities_match_what_ranks_post_in_different_orders(run: Callable[[Body], None]) -> None:
    ends = (0, 4095)
    tags = [callback_tag(7 + place % 2, callback, place) for callback in ends for place in ends]
    tags += [callback_tag(2**32 - 1, 0, 0), nested_callback_tag(0), nested_callback_tag(2**56 - 1)]

    def body(group: Group) -> None:
        values = {tag: np.full(1, number * (group.rank + 1)) for number, tag in enumerate(tags, 1)}
        results = {tag: np.zeros(2, np.int64) for tag in tags}
        posted = []
        for tag in tags if group.rank == 0 else reversed(tags):
            value, result = at(values[tag]), results[tag]
            if tag % 2:
                operation = Operation.all_gather(
                    value, [at(result), at(result[1:])], [1, 1], DType.INT64, tag=tag
                )
            else:
                operation = Operation.all_reduce(
                    value, at(result), 1, DType.INT64, ReduceOp.SUM, tag=tag
                )
            posted.append(group.prepare(operation).post())
        for transfer in posted:
            transfer.wait()
        for number, tag in enumerate(tags, 1):
            wanted = [number, 2 * number] if tag % 2 else [3 * number, 0]
            assert results[tag].tolist() == wanted

    run(body)


def test_preparing_finds_wrong_arguments_and_closed_groups() -> None:
    def body(group: Group) -> None:
        wrong = Operation.broadcast(0, 0, DType.INT8, 2)
        with pytest.raises(UsageError, match="root must be a rank below 2, not 2"):
            group.prepare(wrong)
        for tag in (-1, 1 << 24, CALLBACK_TAGS - 1, 9 << 56):
            with pytest.raises(UsageError, match=f"tag must be 0 to 16777215, not {tag}"):
                group.prepare(Operation.barrier(tag=tag))
        with pytest.raises(UsageError, match=f"tag must be 0 to 16777215, not {CALLBACK_TAGS}"):
            group.prepare(Operation.send(0, 0, DType.INT8, 1 - group.rank, CALLBACK_TAGS))
        send = group.prepare(Operation.send(0, 0, DType.INT8, 1 - group.rank, 0))
        with pytest.raises(UsageError, match="send has no one buffer to replace"):
            send.post(at=64)
        barrier = group.prepare(Operation.barrier())
        barrier.post(blocking=True)
        group.close()
        with pytest.raises(ClosedError):
            barrier.post()
        with pytest.raises(ClosedError):
            group.prepare(Operation.barrier())

    run_ranks(2, body)


def test_an_operation_is_data() -> None:
    made = Operation.scatter([64, 128], 192, [3, 4], DType.INT16, 1, tag=5)
    assert made == (
        Kind.SCATTER, DType.INT16, [64, 128], (192,), [3, 4], (), ReduceOp.NONE, 1, 5, 0,
        False, None,
    )  # fmt: skip
    assert made.elements == 7
    with pytest.raises(TypeError, match="tga"):
        Operation.barrier(tga=5)  # type: ignore[call-arg]
