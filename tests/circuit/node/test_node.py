"""Tests that an aggregation node and its twin (Python model) give the same frames and events."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from circuit_driving import Node, resealed

from slackline.circuit import ELEMENTS, NodeOptions, cached_node
from slackline.errors import UsageError
from slackline.wire import DType, FrameKind, decode

# The limit leaves time to compile a circuit on a busy machine.
pytestmark = [pytest.mark.simulates, pytest.mark.timeout(300)]

NARROW = NodeOptions(ports=3, lanes=1, slots=4, payload_bytes=64)
WIDE = NodeOptions(ports=2, lanes=16, slots=8, payload_bytes=256)
DTYPES = list(ELEMENTS)


@pytest.fixture(params=[NARROW, pytest.param(WIDE, marks=pytest.mark.slow)], ids=["3x1", "2x16"])
def open_node(request: pytest.FixtureRequest) -> Iterator[Any]:
    from slackline.circuit import Simulation

    simulations = []

    def opened(**settings: int) -> Node:
        simulations.append(Simulation(cached_node(request.param)))
        return Node(simulations[-1], request.param, **settings)

    yield opened
    for simulation in simulations:
        simulation.close()


@pytest.mark.parametrize("threshold", [0, 1, 2])
@pytest.mark.parametrize("stall", [0, 0.1, 0.6])
def test_tensors_of_all_sizes_and_types_are_summed_to_the_bit(open_node, threshold, stall) -> None:
    node = open_node(threshold=threshold)
    node.stall(stall, 5)
    rng = np.random.default_rng(1000 * threshold + int(10 * stall))
    for tag in range(24):
        dtype = DTYPES[tag % 4]
        count = int(rng.integers(1, 3 * node.options.payload_bytes // dtype.itemsize))
        node.send_all(node.messages(rng, dtype, count, tag))
    assert node.difference() == ""


def test_a_reduced_frame_acknowledges_its_parts(open_node) -> None:
    node = open_node()
    node.send_all(node.messages(np.random.default_rng(1), DType.FLOAT32, 3, tag=77))
    node.simulation.run(1, cycles=1000, frames=True)
    header = decode(node.simulation.frames(0)[0][0])
    assert (header.source, header.tag, header.sequence, header.acknowledge) == (9, 77, 1, 2)
    assert (header.offset, header.total, header.length) == (0, 12, 12)


def test_a_frame_that_is_partly_out_is_kept_for_the_next_call(open_node) -> None:
    node = open_node()
    node.send_all(node.messages(np.random.default_rng(11), DType.INT32, 16))
    found = []
    while not found:
        node.simulation.step(1)
        found = node.simulation.frames(0)
    assert [frame for frame, _, _ in found] == node.wanted


def spoiled(frame: bytes) -> dict[str, tuple[str, bytes]]:
    """Return frames that must not be reduced, each with the counter that must count it."""
    payload = frame[64:]
    flipped = bytearray(frame)
    flipped[20] ^= 4
    return {
        "a bit of the header": ("malformed", bytes(flipped)),
        "cut": ("malformed", frame[:64]),
        "too long": ("malformed", frame + bytes(200)),
        "far too long": ("malformed", frame + bytes(3000)),
        "empty": ("malformed", resealed(frame, length=0)[:64]),
        "longer than it says": ("malformed", resealed(frame, length=len(payload) // 2)),
        "longer than a slot": ("malformed", resealed(frame, length=1 << 20, total=1 << 20)),
        "beyond its tensor": ("malformed", resealed(frame, total=len(payload) - 4)),
        "another kind": ("malformed", resealed(frame, kind=FrameKind.CREDIT)),
        "another type": ("malformed", resealed(frame, dtype=DType.FLOAT64)),
        "no type": ("malformed", resealed(frame, dtype=None)),
        "a partial": ("malformed", resealed(frame, flags=1)),
        "a chunk": ("malformed", resealed(frame, chunk=1)),
        "another operation": ("malformed", resealed(frame, reduce_op=4)),
        "another collective": ("malformed", resealed(frame, collective=2)),
        "another job": ("foreign", resealed(frame, job=8)),
        "another life": ("foreign", resealed(frame, epoch=2)),
        "another rank": ("foreign", resealed(frame, source=1)),
        "no number": ("unordered", resealed(frame, sequence=0)),
        "the far past": ("unordered", resealed(frame, sequence=0xFFFFFF00)),
        "the future": ("unordered", resealed(frame, sequence=2)),
    }


def test_what_must_not_be_reduced_is_counted_and_dropped(open_node) -> None:
    node = open_node()
    frames = node.messages(np.random.default_rng(2), DType.FLOAT32, node.options.payload_bytes // 4)
    counts = {"malformed": 1, "foreign": 0, "repeated": 0, "unordered": 0}
    for counter, frame in spoiled(frames[0][0]).values():
        node.send(0, frame)
        counts[counter] += 1
    node.send(0, frames[0][0], bad=True)
    assert node.wanted == []
    node.send_all(frames)
    assert len(node.wanted) == 1
    assert node.difference() == ""
    assert {name: node.read(f"port0_{name}") for name in counts} == counts


def test_lost_and_doubled_frames_are_sent_again_and_added_once(open_node) -> None:
    """Ranks send all frames behind a loss again, and some that were taken before."""
    node = open_node()
    node.stall(0.2, 3)
    rng = np.random.default_rng(3)
    frames: list[list[bytes]] = [[] for _ in range(node.options.ports)]
    for tag in range(8):
        for port, parts in enumerate(node.messages(rng, DTYPES[tag % 4], 40, tag)):
            frames[port] += parts
    for port, own in enumerate(frames):
        at = 0
        while at < len(own):
            fate = rng.random()
            if fate < 0.2:
                node.send(port, own[at], bad=True)
            elif fate < 0.4 and at + 1 < len(own):
                node.send(port, own[at + 1])
            elif fate < 0.6 and at > 0:
                at -= 1
            else:
                node.send(port, own[at])
                at += 1
    assert len(node.wanted) == len(frames[0])
    assert node.difference() == ""


def quiet(node: Node) -> list[list[bytes]]:
    """Return the frames that each port gives until nothing moves any more."""
    node.simulation.settle(quiet=500, cycles=20_000)
    return [[frame for frame, _, _ in node.simulation.frames(k)] for k in range(len(node.senders))]


def test_a_sum_that_was_lost_is_given_again_and_not_added_again(open_node) -> None:
    node = open_node()
    slots = node.options.slots
    rng = np.random.default_rng(12)
    frames: list[list[bytes]] = [[] for _ in node.senders]
    for tag in range(slots + 2):
        for port, parts in enumerate(node.messages(rng, DTYPES[tag % 4], 8, tag)):
            frames[port] += parts
    node.send_all(frames)
    sums = node.wanted
    assert quiet(node) == [sums] * len(node.senders)
    # The repeated frames are all frames whose sums are kept, the last one first, and one frame
    # whose sum is no longer kept.
    for k in range(slots + 1, 0, -1):
        node.send(1, frames[1][k])
    assert node.twin.resent == [(1, each) for each in sums[:1:-1]]
    # The other ports get nothing.
    assert quiet(node) == [sums[:1:-1] if k == 1 else [] for k in range(len(node.senders))]
    counts = {name: node.read(f"port1_{name}") for name in ("accepted", "repeated", "unordered")}
    assert counts == {"accepted": slots + 2, "repeated": slots, "unordered": 1}
    assert [node.read(f"port{k}_resent") for k in range(2)] == [0, slots]
    node.send_all(node.messages(rng, DType.FLOAT32, 8))
    assert quiet(node) == [node.wanted[-1:]] * len(node.senders)


def test_a_part_that_comes_twice_before_its_sum_is_added_once(open_node) -> None:
    node = open_node()
    parts = node.messages(np.random.default_rng(13), DType.FLOAT32, 4)
    for _ in range(3):
        node.send(0, parts[0][0])
    node.simulation.step(1000)
    for port in range(1, node.options.ports):
        node.send(port, parts[port][0])
    assert quiet(node) == [node.wanted] * len(node.senders)
    assert (node.read("port0_resent"), node.read("port0_repeated")) == (0, 2)


def test_sums_given_again_do_not_cut_the_frames_between_them(open_node) -> None:
    """Check that all frames stay whole while a rank asks for an old sum after each frame.

    Readers and senders stall at random meanwhile.
    """
    node = open_node()
    node.stall(0.4, 21)
    rng = np.random.default_rng(14)
    sent: list[bytes] = []
    for tag in range(60):
        dtype = DTYPES[tag % 4]
        parts = node.messages(rng, dtype, node.options.payload_bytes // dtype.itemsize, tag)
        node.send_all(parts)
        sent += parts[0]
        node.send(0, sent[-node.options.slots :][0])
    assert node.difference() == ""
    assert node.read("port0_resent") > 0
    assert node.read("port1_resent") == 0


def test_frames_that_disagree_are_dropped_and_answered_at_all_ports(open_node) -> None:
    node = open_node()
    rng = np.random.default_rng(4)
    first, second = node.messages(rng, DType.INT32, 2, 1), node.messages(rng, DType.INT32, 3, 2)
    first[1] = [resealed(first[1][0], tag=9)]
    node.send_all(first)
    node.send_all(second)
    assert [decode(frame).kind for frame in node.wanted] == [FrameKind.ABORT, FrameKind.DATA]
    assert node.difference() == ""
    assert node.read("mismatched") == 1
    # A rank that has lost the answer gets the answer again.
    node.send(2 % len(first), first[2 % len(first)][0])
    answers = quiet(node)
    assert [decode(each[0]).kind if each else None for each in answers] == [
        FrameKind.ABORT if port == 2 % len(first) else None for port in range(len(first))
    ]


def test_after_frames_that_disagree_a_message_still_waits_for_its_threshold(open_node) -> None:
    node = open_node(threshold=2)
    rng = np.random.default_rng(6)
    first = node.messages(rng, DType.INT32, 2, 1)
    # The dropped frame ends its message on all ports but this one.
    first[-1] = [resealed(first[-1][0], total=16)]
    second = node.messages(rng, DType.INT32, node.options.payload_bytes // 2, 2)
    node.send_all(first)
    *early, late = second
    for port, (one, other) in enumerate(early):
        node.send(port, one)
        node.send(port, other)
    node.send(len(early), late[0])
    node.simulation.step(2000)
    refused, node.wanted[:1] = node.wanted[:1], []
    assert [frame for frame, _, _ in node.simulation.frames(0)] == refused
    for port in range(1, len(first)):
        node.simulation.frames(port)
    assert node.read("mismatched") == 1
    node.send(len(early), late[1])
    assert node.difference() == ""


def onset_cycles(node: Node, frames: int) -> tuple[int, list[int]]:
    """Send frames 500 cycles apart; return the start and the cycles at which sums leave."""
    size = frames * node.options.payload_bytes // 4
    parts = node.messages(np.random.default_rng(5), DType.FLOAT32, size)
    start = node.simulation.step(0)
    for own, rank in zip(parts, range(node.options.ports), strict=True):
        for k, frame in enumerate(own):
            node.send(rank, frame, not_before=start + 500 * k)
    node.simulation.run(frames, cycles=500 * frames + 1000, frames=True)
    return start, [first for _, first, _ in node.simulation.frames(0)]


def test_reduction_starts_at_the_threshold_and_then_follows_the_frames(open_node) -> None:
    for threshold, slots in [(1, [0, 1, 2, 3]), (2, [1, 1, 2, 3])]:
        start, cycles = onset_cycles(open_node(threshold=threshold), 4)
        assert [(cycle - start) // 500 for cycle in cycles] == slots


def test_store_and_forward_waits_for_the_whole_message(open_node) -> None:
    node = open_node(threshold=0)
    frames = node.options.slots
    start, cycles = onset_cycles(node, frames)
    assert [(cycle - start) // 500 for cycle in cycles] == [frames - 1] * frames
    assert node.read("forced") == 0


def test_a_message_that_no_buffer_holds_is_begun_when_one_is_full(open_node) -> None:
    node = open_node(threshold=0)
    frames = 2 * node.options.slots
    start, cycles = onset_cycles(node, frames)
    assert (cycles[0] - start) // 500 == node.options.slots - 1
    assert node.read("forced") == 1


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
def test_every_cycle_with_work_is_busy_or_has_one_cause(open_node, dtype) -> None:
    node = open_node(local_ports=1)
    rng = np.random.default_rng(6)
    parts = node.messages(rng, dtype, 8 * node.options.payload_bytes // dtype.itemsize)
    start = node.simulation.step(0)
    for rank, own in enumerate(parts):
        for k, frame in enumerate(own):
            late = 100 if rank == k % 2 else 0
            node.send(rank, frame, not_before=start + 300 * k + late)
    assert node.difference() == ""
    causes = ["adder", "no_credit", "no_local_data", "no_peer_data", "onset"]
    found = {name: node.read(name) for name in causes}
    beats = node.options.header_beats + node.options.slot_beats
    assert node.read("frames") == 8
    assert node.read("busy") == 8 * beats
    # Even frames of rank 0, which is local, are late by 100 cycles, and so are odd frames of rank
    # 1. No data are counted as missing before a message starts, and the threshold is seen a cycle
    # late.
    assert found["onset"] == 101
    assert found["no_credit"] == 0
    assert found["no_local_data"] == 100 * 3
    halves = 8 * node.options.slot_beats if dtype is DType.BFLOAT16 else 0
    # Headers are compared for three cycles. The first of these cycles counts as onset for the
    # message's first frame.
    assert found["adder"] == halves + 3 * 8 - 1
    starved = [node.read(f"port{port}_starved") for port in range(node.options.ports)]
    assert starved[0] == found["no_local_data"] + found["no_peer_data"] - 100 * 4
    assert starved[1] == found["no_peer_data"]


def test_a_reader_that_does_not_read_stops_all_without_loss(open_node) -> None:
    node = open_node()
    node.simulation.stall(1, 0.99, 5, output=True)
    rng = np.random.default_rng(7)
    for tag in range(20):
        node.send_all(node.messages(rng, DType.FLOAT32, node.options.payload_bytes // 4, tag))
    assert node.difference() == ""
    assert node.read("no_credit") > 1000


def test_a_beat_of_sums_leaves_every_cycle_headers_included(open_node) -> None:
    node = open_node()
    rng = np.random.default_rng(8)
    frames = 50
    for tag in range(frames):
        node.send_all(node.messages(rng, DType.FLOAT32, node.options.payload_bytes // 4, tag))
    node.simulation.run(frames, cycles=10_000, frames=True)
    moved = node.simulation.frames(0)
    beats = node.options.header_beats + node.options.slot_beats
    assert moved[-1][2] - moved[0][1] + 1 == frames * beats


def test_closing_the_node_forgets_frames_and_numbers(open_node) -> None:
    node = open_node()
    rng = np.random.default_rng(9)
    parts = node.messages(rng, DType.FLOAT32, 4)
    node.simulation.send(0, parts[0][0])
    node.simulation.step(200)
    assert node.read("port0_accepted") == 1
    node.simulation.write(node.registers["control"], 0)
    node.simulation.write(node.registers["control"], 1)
    node.send_all(parts)
    node.simulation.run(1, cycles=1000, frames=True)
    assert [node.simulation.frames(port)[0][0] for port in range(node.options.ports)] == (
        node.wanted * node.options.ports
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ports": 1}, "ports must be 2 to 16, not 1"),
        ({"slots": 3}, "slots must be a power of two from 2 to 1024, not 3"),
        ({"payload_bytes": 100}, "payload_bytes must be a power of two from 128 to 65536, not 100"),
        ({"lanes": 5}, "lanes must be one of 1, 2, 4, 8, 16, not 5"),
    ],
)
def test_a_node_that_cannot_be_built_is_refused_with_the_value(wrong, message) -> None:
    with pytest.raises(UsageError) as caught:
        NodeOptions(**wrong)
    assert str(caught.value) == message
