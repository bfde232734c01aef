"""Tests that rings of twins (Python models) give sums bit-identical to sums in rank order."""

from dataclasses import replace

import numpy as np
import pytest
from ring_driving import DTYPES, EPOCH, JOB, PLAN, Ring, Tensors, counts, tensor, tensors

from slackline.circuit import (
    RingOperation,
    RingOptions,
    RingPlace,
    open_ring_device,
    rotated,
)
from slackline.errors import UsageError
from slackline.wire import DType, FrameFlag, decode

OPTIONS = RingOptions(lanes=1, slots=2, payload_bytes=256, operations=32)


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_rank_has_the_sum_in_rank_order_whatever_was_posted_first(ranks, dtype) -> None:
    rng = np.random.default_rng(ranks)
    ring = Ring(["twin"] * ranks, OPTIONS)
    operations = [
        tensors(rng, OPTIONS, ranks, dtype, count, tag)
        for tag, count in enumerate(counts(rng, OPTIONS, dtype))
    ]
    ring.post(operations, rng)
    ring.settle(rng)
    assert ring.differences(operations) == ""


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rotating_ring_has_the_bits_of_the_plan_ring(ranks, dtype) -> None:
    rng = np.random.default_rng(ranks)
    ring = Ring(["twin"] * ranks, replace(OPTIONS, operations=64))
    operations = [
        tensors(rng, OPTIONS, ranks, dtype, count, tag, rotates=True)
        for tag, count in enumerate(counts(rng, OPTIONS, dtype))
    ]
    ring.post(operations, rng)
    ring.settle(rng)
    assert ring.differences(operations) == ""


def test_every_rank_may_open_an_operation_and_the_sum_is_in_the_order_from_there() -> None:
    rng = np.random.default_rng(6)
    ring = Ring(["twin"] * 4, OPTIONS)
    operations = [
        tensors(rng, OPTIONS, 4, dtype, 100 + tag, tag, start=tag % 4, rotates=tag % 3 == 0)
        for tag, dtype in enumerate(DTYPES * 2)
    ]
    ring.post(operations, rng)
    ring.settle(rng)
    assert ring.differences(operations) == ""


def test_a_rotated_tensor_is_cut_at_lines_and_each_chunk_opens_behind_its_owner() -> None:
    whole = RingOperation(
        tag=5, dtype=DType.FLOAT16, total=300, frame_bytes=64, source=10_000, target=20_000
    )
    said = [
        (each.key, each.start, each.total, each.source, each.target) for each in rotated(whole, 3)
    ]
    assert said == [
        ((5, 0), 1, 128, 10_000, 20_000),
        ((5, 1), 2, 128, 10_128, 20_128),
        ((5, 2), 0, 44, 10_256, 20_256),
    ]
    assert [each.key for each in rotated(replace(whole, total=64), 3)] == [(5, 0)]
    with pytest.raises(UsageError) as caught:
        rotated(replace(whole, chunk=2, start=1), 3)
    message = (
        "only a whole tensor that starts at rank 0 can be cut into chunks, "
        "not chunk 2 that starts at rank 1"
    )
    assert str(caught.value) == message


def one(dtype: DType, values: list[list[float]], frame_bytes: int = 64) -> Tensors:
    """Return one operation, from a list of values for each rank."""
    sources = [
        np.array(each, np.float32 if dtype is DType.FLOAT32 else np.float16) for each in values
    ]
    return Tensors(9, dtype, frame_bytes, sources)


def opened(operation: Tensors, ranks: int) -> Ring:
    ring = Ring(["twin"] * ranks, OPTIONS)
    for rank in reversed(range(ranks)):
        ring.devices[rank].post(operation.operation(rank))
    return ring


def test_partials_of_halves_travel_in_fp32_and_finals_as_halves() -> None:
    operation = one(DType.FLOAT16, [[2048.0], [1.0], [1.0]])
    ring = opened(operation, 3)
    ring.settle()
    # fp16 has no 2049, so the sum would be 2048 if the partial sum had been rounded.
    assert [float(target[0]) for target in operation.targets] == [2050.0] * 3
    headers = [[decode(frame) for frame in sent] for sent in ring.sent]
    said = [[(each.flags, each.length, each.total) for each in sent] for sent in headers]
    partial, final = (FrameFlag.PARTIAL, 4, 2), (FrameFlag(0), 2, 2)
    assert said == [[partial, final], [partial], [final]]
    assert {(each.plan_id, each.job, each.epoch) for sent in headers for each in sent} == {
        (PLAN, JOB, EPOCH)
    }
    assert [each.source for sent in headers for each in sent] == [0, 0, 1, 2]


def test_a_frame_of_no_open_operation_and_a_spoiled_one_are_counted_and_dropped() -> None:
    operation = one(DType.FLOAT32, [[1.0], [2.0]])
    ring = opened(operation, 2)
    ring.turn(0)
    (frame,) = ring.sent[0]
    late = ring.devices[1]
    late.receive(frame)  # the frame was added before, so it is unexpected now
    late.receive(frame[:-4])
    late.receive(frame[:20] + b"\xff" + frame[21:])
    ring.settle()
    assert ring.differences([operation]) == ""
    late.receive(frame)
    wanted = {"accepted": 3, "malformed": 2, "foreign": 0, "unexpected": 2, "frames": 1}
    assert {name: late.counters()[name] for name in wanted} == wanted


def test_a_final_value_before_the_own_part_is_in_it_is_dropped() -> None:
    operation = one(DType.FLOAT32, [[1.0], [2.0], [4.0]])
    ring = Ring(["twin"] * 3, OPTIONS)
    ring.devices[2].post(operation.operation(2))
    early = Ring(["twin"] * 3, OPTIONS)
    for rank in (2, 1, 0):
        early.devices[rank].post(one(DType.FLOAT32, [[1.0], [2.0], [4.0]]).operation(rank))
    early.settle()
    final = early.sent[0][1]
    ring.devices[1].post(operation.operation(1))
    ring.devices[1].receive(final)
    assert ring.devices[1].counters()["unexpected"] == 1
    ring.devices[0].post(operation.operation(0))
    ring.settle()
    assert ring.differences([operation]) == ""


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dtype": DType.INT8}, "a ring NIC sums FLOAT32, INT32, BFLOAT16, FLOAT16, not INT8"),
        ({"total": 6}, "total must be a positive multiple of 4 bytes below 2^48, not 6"),
        ({"total": 0}, "total must be a positive multiple of 4 bytes below 2^48, not 0"),
        ({"frame_bytes": 96}, "frame_bytes must be a positive multiple of 64 up to 256, not 96"),
        ({"frame_bytes": 320}, "frame_bytes must be a positive multiple of 64 up to 256, not 320"),
        (
            {"dtype": DType.FLOAT16, "frame_bytes": 192},
            "frame_bytes must be a positive multiple of 64 up to 128, not 192",
        ),
        ({"chunk": 65536}, "chunk must be 0 to 65535, not 65536"),
        ({"start": 2}, "start must be 0 to 1, not 2"),
        ({"tag": 5}, "chunk 0 of an operation with tag 0x5 is open already"),
    ],
)
def test_an_operation_that_cannot_be_is_refused_with_the_value(wrong, message) -> None:
    own = tensor(np.random.default_rng(1), DType.FLOAT32, 4)
    right = {
        "tag": 6,
        "dtype": DType.FLOAT32,
        "total": 16,
        "frame_bytes": 64,
        "source": own.ctypes.data,
        "target": own.ctypes.data,
    }
    device = Ring(["twin"] * 2, OPTIONS).devices[1]
    device.post(RingOperation(**{**right, "tag": 5}))
    with pytest.raises(UsageError) as caught:
        device.post(RingOperation(**{**right, **wrong}))
    assert str(caught.value) == message


def test_more_operations_than_a_device_has_are_refused() -> None:
    own = np.zeros(1, np.float32)
    device = Ring(["twin"] * 2, RingOptions(operations=2)).devices[1]
    for tag in range(2):
        device.post(Tensors(tag, DType.FLOAT32, 64, [own, own]).operation(1))
    with pytest.raises(UsageError, match=r"^2 operations are open, the limit of this NIC$"):
        device.post(Tensors(2, DType.FLOAT32, 64, [own, own]).operation(1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RingOptions(slots=128), "slots must be a power of two from 2 to 64, not 128"),
        (
            lambda: RingOptions(operations=3),
            "operations must be a power of two from 2 to 256, not 3",
        ),
        (
            lambda: RingOptions(ahead_beats=127),
            "ahead_beats must be 0 or at least 128, not 127",
        ),
        (
            lambda: RingPlace(rank=0, ranks=1, job=0, epoch=0, plan_id=0),
            "ranks must be 2 to 65535, not 1",
        ),
        (
            lambda: RingPlace(rank=2, ranks=2, job=0, epoch=0, plan_id=0),
            "rank must be 0 to 1, not 2",
        ),
        (
            lambda: open_ring_device("board", OPTIONS, rank=0, ranks=2, job=0, epoch=0, plan_id=0),
            "a ring device must be 'twin' or 'circuit', not 'board'",
        ),
    ],
)
def test_a_device_that_cannot_be_opened_is_refused_with_the_value(make, message) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert str(caught.value) == message
