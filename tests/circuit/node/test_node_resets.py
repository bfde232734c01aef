"""Tests of a node that is reset by its registers, of ports that take no part, and of the wrap.

The expected frames and sums are written out here; no test in this file rests on the twin.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from slackline.circuit import NodeOptions, NodeTwin, Simulation, cached_node, node_registers
from slackline.wire import (
    LAST_SEQUENCE,
    Collective,
    DType,
    FrameKind,
    Header,
    ReduceOp,
    decode,
    encode,
    next_sequence,
    sequences_behind,
)

# The limit leaves time to compile a circuit on a busy machine.
pytestmark = [pytest.mark.simulates, pytest.mark.timeout(300)]

OPTIONS = NodeOptions(ports=3, lanes=1, slots=4, payload_bytes=64)
BEATS = OPTIONS.header_beats + OPTIONS.slot_beats
AT = {each.name: each.address for each in node_registers(OPTIONS)}
LAST, BAD = 1, 2


@pytest.fixture
def node() -> Iterator[Simulation]:
    with Simulation(cached_node(OPTIONS)) as simulation:
        yield simulation


def opened(node: Simulation, **settings: int) -> None:
    for name, value in {"control": 0, "job": 7, "epoch": 3, **settings, "control ": 1}.items():
        node.write(AT[name.strip()], value)


def frame(port: int, values: Any, sequence: int = 1, **changes: Any) -> bytes:
    """Return a frame of fp32 numbers, or of the elements of an array."""
    data = np.asarray(values, np.float32) if not isinstance(values, np.ndarray) else values
    fields: dict[str, Any] = {
        "kind": FrameKind.DATA,
        "job": 7,
        "epoch": 3,
        "source": port,
        "dtype": DType.FLOAT32,
        "collective": Collective.ALL_REDUCE,
        "reduce_op": ReduceOp.SUM,
        "sequence": sequence,
        "total": data.nbytes,
        "length": data.nbytes,
    }
    return encode(Header(**(fields | changes))) + data.tobytes()


def sums(node: Simulation, port: int = 0) -> list[tuple[int, int, list[float]]]:
    """Return the epoch, number and values of each frame that a port has given."""
    node.settle(quiet=200, cycles=50_000)
    found = []
    for each, _, _ in node.frames(port):
        header = decode(each)
        values = np.frombuffer(each[64:], np.float32).tolist()
        found.append((header.epoch, header.sequence, values))
    return found


def ends(beats: np.ndarray) -> list[tuple[int, bool]]:
    """Return the number of beats of each frame on a stream, and whether it is marked as damaged.

    The last entry may be a frame without an end, of which no beat is marked.
    """
    found, begun = [], 0
    for flags in beats[:, -1]:
        begun += 1
        if flags & LAST:
            found.append((begun, bool(flags & BAD)))
            begun = 0
    return [*found, (begun, False)] if begun else found


def test_numbers_skip_zero_when_they_wrap() -> None:
    assert next_sequence(LAST_SEQUENCE) == 1
    assert next_sequence(1) == 2
    assert next_sequence(0) == 1
    numbers = [LAST_SEQUENCE - 1, LAST_SEQUENCE, 1, 2]
    assert [sequences_behind(number, 2) for number in numbers] == [3, 2, 1, 0]
    assert sequences_behind(2, 1) == LAST_SEQUENCE - 1


def test_sums_go_on_when_the_numbers_wrap(node: Simulation) -> None:
    first = LAST_SEQUENCE - 2
    numbers = [first, first + 1, LAST_SEQUENCE, 1, 2, 3]
    opened(node, first=first)
    twin = NodeTwin(options=OPTIONS, job=7, epoch=3, first=first)
    for number in numbers:
        for port in range(3):
            node.send(port, frame(port, [number % 1000 + port], number))
            twin.receive(port, frame(port, [number % 1000 + port], number))
    expected = [(3, number, [3.0 * (number % 1000) + 3]) for number in numbers]
    assert sums(node) == expected
    # The kept sums are those of the last four numbers, on both sides of the wrap.
    for number in numbers[1:]:
        node.send(2, frame(2, [0.0], number))
        twin.receive(2, frame(2, [0.0], number))
    node.frames(2)
    assert sums(node, 2) == expected[2:]
    node.send(1, frame(1, [0.0], 0))
    assert sums(node, 1)[len(numbers) :] == []
    assert [node.read(AT[f"port{port}_repeated"]) for port in range(3)] == [0, 0, 4]
    assert [node.read(AT[f"port{port}_unordered"]) for port in range(3)] == [0, 1, 1]
    assert [decode(each).sequence for _, each in twin.resent] == numbers[2:]


@pytest.mark.parametrize("name", ["job", "epoch"])
def test_frames_of_two_epochs_or_jobs_are_never_added(node: Simulation, name: str) -> None:
    opened(node)
    twin = NodeTwin(options=OPTIONS, job=7, epoch=3)
    for port in range(2):
        node.send(port, frame(port, [100.0]))
        twin.receive(port, frame(port, [100.0]))
    node.step(300)
    node.write(AT[name], 9)
    setattr(twin, name, 9)
    wanted = []
    for port in (2, 1, 0):
        node.send(port, frame(port, [1.0], **{name: 9}))
        wanted += twin.receive(port, frame(port, [1.0], **{name: 9}))
    assert sums(node) == [(9 if name == "epoch" else 3, 1, [3.0])]
    assert [np.frombuffer(each[64:], np.float32)[0] for each in wanted] == [3.0]


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("taken", [1, 15, 20, BEATS - 1])
def test_a_reset_in_the_middle_of_a_sum_ends_its_frame_as_damaged(
    node: Simulation, taken: int, ready: bool
) -> None:
    opened(node)
    for port in range(3):
        node.send(port, frame(port, np.ones(16, np.float32)))
    seen = [node.pull(0)[0]]
    while sum(map(len, seen)) < taken:
        node.step(1)
        seen.append(node.pull(0)[0])
    if not ready:
        node.stall(0, 0.999, 1, output=True)
    opened(node)
    node.stall(0, 0, 1, output=True)
    for port in range(3):
        node.send(port, frame(port, np.full(16, 5, np.float32)))
    node.settle(quiet=200, cycles=5000)
    seen.append(node.pull(0)[0])
    cut, *whole = ends(np.concatenate(seen))
    assert taken <= cut[0] <= BEATS
    assert cut == (BEATS, False) or cut[1]
    assert whole == [(BEATS, False)]
    sent = np.concatenate(seen)[-OPTIONS.slot_beats :, :4].copy().view(np.float32)
    assert set(sent.reshape(-1)) == {15.0}
    for port in (1, 2):
        beats, _ = node.pull(port)
        assert all(n == BEATS or bad for n, bad in ends(beats))


def test_the_rest_of_a_frame_that_a_reset_cuts_is_not_taken_for_a_frame(node: Simulation) -> None:
    opened(node)
    # The payload of the cut frame looks like a frame of its own.
    inner = np.frombuffer(frame(0, [1.0]), np.uint8)[:64].view(np.float32)
    node.send(0, frame(0, inner.copy(), 2))
    node.step(18)
    assert 0 < node.waiting(0) < OPTIONS.slot_beats
    opened(node)
    for port in range(3):
        node.send(port, frame(port, [2.0]))
    assert sums(node) == [(3, 1, [6.0])]
    assert [node.read(AT[f"port0_{each}"]) for each in ("accepted", "malformed", "foreign")] == [
        1,
        0,
        0,
    ]


@pytest.mark.parametrize("absent", [0b001, 0b010, 0b100, 0b101])
def test_a_port_that_is_absent_changes_no_bit_and_gets_no_sum(
    node: Simulation, absent: int
) -> None:
    values = np.array([-0.0, 0.0, 1e-40, -1e-40, 3.0, np.inf, 7.25, 2.0**-149], np.float32)
    opened(node, absent=absent)
    twin = NodeTwin(options=OPTIONS, job=7, epoch=3, absent=absent)
    present = [port for port in range(3) if not absent >> port & 1]
    wanted = []
    for sequence in range(1, 8):
        for port in range(3):
            node.send(port, frame(port, values, sequence))
            wanted += twin.receive(port, frame(port, values, sequence))
    node.settle(quiet=200, cycles=20_000)
    expected = (values * len(present)).view(np.uint32).tolist()
    for port in range(3):
        found = [each for each, _, _ in node.frames(port)]
        assert len(found) == (7 if port in present else 0)
        for each in found:
            assert np.frombuffer(each[64:], np.uint32).tolist() == expected
    assert wanted == [each for each in wanted if decode(each).kind is FrameKind.DATA]
    assert len(wanted) == 7
    foreign = [node.read(AT[f"port{port}_foreign"]) for port in range(3)]
    assert foreign == [0 if port in present else 7 for port in range(3)]
    assert foreign == [each["foreign"] for each in twin.events]


def test_a_port_that_sends_nothing_or_takes_nothing_is_counted(node: Simulation) -> None:
    opened(node)
    for sequence in range(1, 5):
        for port in (0, 2):
            node.send(port, frame(port, [1.0], sequence))
    node.step(3000)
    waits = [node.read(AT[f"port{port}_awaited"]) for port in range(3)]
    assert waits[0] + waits[2] < 50
    assert waits[1] > 2500
    opened(node)
    node.stall(1, 0.99999, 1, output=True)
    for sequence in range(1, 9):
        for port in range(3):
            node.send(port, frame(port, [1.0], sequence))
    node.step(3000)
    # Two more sums are computed than the slots hold, and wait behind the adders.
    assert len(node.frames(0)) == len(node.frames(2)) == OPTIONS.slots
    waits = [node.read(AT[f"port{port}_untaken"]) for port in range(3)]
    assert waits[0] + waits[2] == 0
    assert waits[1] > 2000


def test_repeats_of_one_port_do_not_go_to_the_others_or_slow_them(node: Simulation) -> None:
    opened(node)
    frames = 32
    start = node.step(0)
    for sequence in range(1, frames + 1):
        for port in range(3):
            for _ in range(2 if port == 1 else 1):
                node.send(port, frame(port, np.ones(16, np.float32), sequence))
    node.settle(quiet=300, cycles=20_000)
    given = [node.frames(port) for port in range(3)]
    assert [len(each) for each in given[::2]] == [frames] * 2
    # Port 1 takes two frames for each sum, a beat a cycle, and no sum waits longer than that.
    assert given[0][-1][2] - start < 2 * frames * BEATS + 100
    assert {decode(each).sequence for each, _, _ in given[1]} == set(range(1, frames + 1))


def test_a_frame_that_is_short_within_its_last_beat_is_malformed() -> None:
    options = NodeOptions(ports=2, lanes=4, slots=4, payload_bytes=64)
    twin = NodeTwin(options=options, job=7, epoch=3)
    whole = frame(0, [1.0, 2.0, 3.0, 4.0])
    for each in (whole[:-3], whole + b"\0", whole[:-16]):
        twin.receive(0, each)
    assert twin.events[0]["malformed"] == 3
    twin.receive(0, whole)
    assert len(twin.receive(1, frame(1, [1.0, 2.0, 3.0, 4.0]))) == 1


def test_a_bare_circuit_gets_a_frame_as_its_bridge_would_give_it(node: Simulation) -> None:
    opened(node)
    whole = frame(0, [1.0, 2.0])
    for each in (whole[:-3], whole + b"\0", whole[:-4]):
        node.send(0, each)
    node.step(200)
    assert node.read(AT["port0_malformed"]) == 3
