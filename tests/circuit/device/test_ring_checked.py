"""Tests of a ring of twins (Python models) in which circuits repeat operations and find errors."""

import threading
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
from mutating import make
from ring_driving import DTYPES, EPOCH, JOB, PLAN, Ring, tensors
from ring_mutants import MUTANTS, OPTIONS

from slackline.circuit import (
    CheckedRing,
    Checks,
    RingDevice,
    RingPlace,
    RingTwin,
    Verilog,
    cached_ring,
)
from slackline.circuit.device import _twin as home
from slackline.errors import InternalError
from slackline.wire import HEADER_BYTES, DType, FrameFlag, decode

# The limit leaves time to compile a circuit on a busy machine.
pytestmark = pytest.mark.timeout(300)

OPERATIONS = 12


def place(rank: int, ranks: int) -> RingPlace:
    return RingPlace(rank=rank, ranks=ranks, job=JOB, epoch=EPOCH, plan_id=PLAN)


class Checked:
    """A ring of twins in which a device of `open_other` repeats the operations of `rank`."""

    def __init__(
        self, rank: int, ranks: int, checks: Checks, open_other: Callable[[RingPlace], RingDevice]
    ) -> None:
        self.ring = Ring(["twin"] * ranks, OPTIONS)
        where = place(rank, ranks)
        self.device = CheckedRing(
            self.ring.devices[rank], partial(open_other, where), where, checks
        )
        self.ring.devices[rank] = self.device
        self.rng = np.random.default_rng(ranks)
        self.operations = 0

    def sum(self, dtype: DType, count: int = 100, **how: bool) -> str:
        """Sum one tensor on all ranks; return the first error, or an empty string."""
        ranks = len(self.ring.devices)
        one = tensors(self.rng, OPTIONS, ranks, dtype, count, self.operations, **how)
        self.operations += 1
        self.ring.done = [[] for _ in self.ring.devices]
        self.ring.post([one], self.rng)
        self.ring.settle(self.rng)
        return self.ring.differences([one])

    def wait(self) -> None:
        """Wait until no operation is being checked; raise the error of a failed check."""
        again = self.device._again
        while not again.idle and again._thread.is_alive():
            again._thread.join(0.01)
        self.device.advance()

    def sum_until_the_error(self) -> None:
        for dtype in DTYPES * 3:
            assert self.sum(dtype) == ""
            self.wait()

    def until_it_fails(self) -> str:
        """Sum tensors until a check fails; return the text of its error."""
        with pytest.raises(InternalError) as caught:
            self.sum_until_the_error()
        assert caught.value.rank == self.device._again._place.rank
        return str(caught.value)


@pytest.fixture
def opened() -> Iterator[Callable[..., Checked]]:
    found: list[Checked] = []

    def open_one(*arguments: object) -> Checked:
        found.append(Checked(*arguments))  # type: ignore[arg-type]
        return found[-1]

    yield open_one
    for each in found:
        each.ring.close()


def circuit(where: RingPlace, made: Verilog | None = None) -> RingDevice:
    from slackline.circuit import RingCircuit, Simulation

    simulation = Simulation(made or cached_ring(OPTIONS))
    return RingCircuit(OPTIONS, where, simulation=simulation)


def twin(where: RingPlace) -> RingDevice:
    return RingTwin(OPTIONS, where)


@pytest.mark.simulates
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_circuit_has_the_frames_and_sums_of_the_twin_at_every_rank(opened, rank) -> None:
    checks = Checks(1)
    ring = opened(rank, 3, checks, circuit)
    for dtype in DTYPES * 2:
        assert ring.sum(dtype) == ""
        ring.wait()
    assert checks.counters() == {"device_checks_due": 8, "device_checks_done": 8}
    assert ring.device.counters()["completed"] == 8


@pytest.mark.simulates
def test_chunks_of_a_rotating_ring_are_checked_one_by_one(opened) -> None:
    checks = Checks(1)
    ring = opened(1, 3, checks, circuit)
    done = 0
    while done < 4:
        assert ring.sum(DTYPES[done % 4], rotates=True) == ""
        ring.wait()
        done = checks.counters()["device_checks_done"]
    assert checks.counters()["device_checks_due"] == 3 * ring.operations


@pytest.mark.simulates
@pytest.mark.slow
def test_a_mutated_circuit_is_found(opened, monkeypatch: pytest.MonkeyPatch) -> None:
    from slackline.circuit import QueuedRingNic, convert

    make(MUTANTS["rounding"], monkeypatch)
    mutated = convert("ring", QueuedRingNic(OPTIONS))
    said = opened(1, 3, Checks(1), lambda where: circuit(where, mutated)).until_it_fails()
    assert said.startswith(
        "the NIC that checks rank 1 sends another frame of chunk 0 of operation 0x"
    )


class Flipped(RingTwin):
    """A twin with one wrong bit in the frame of kind `kind` at offset 128."""

    kind: FrameFlag | None = FrameFlag.PARTIAL

    def frames(self) -> list[bytes]:
        return [self._changed(frame) for frame in super().frames()]

    def _changed(self, frame: bytes) -> bytes:
        header = decode(frame)
        if (header.offset, header.flags) != (128, self.kind):
            return frame
        at = HEADER_BYTES + 5
        return frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]


class WrongSum(RingTwin):
    def _store(self, posted: home._Open, payload: bytes) -> None:
        begin = 128 - posted.stored
        if 0 <= begin < len(payload):
            payload = payload[:begin] + bytes([payload[begin] ^ 1]) + payload[begin + 1 :]
        super()._store(posted, payload)


class Silent(RingTwin):
    def frames(self) -> list[bytes]:
        return super().frames()[:-1]


class Failing(RingTwin):
    def advance(self) -> None:
        raise OSError("no such wire")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (Flipped, "sends another frame of chunk 0 of operation 0x0 at offset 128"),
        (WrongSum, "has another sum of chunk 0 of operation 0x0 at offset 128"),
        (Failing, "could not repeat chunk 0 of operation 0x0: no such wire"),
    ],
)
def test_what_is_not_the_same_is_told_with_tag_offset_and_rank(opened, wrong, words) -> None:
    ring = opened(1, 3, Checks(1), lambda where: wrong(OPTIONS, where))
    assert ring.until_it_fails() == f"the NIC that checks rank 1 {words}"


def test_a_frame_that_does_not_come_is_a_difference(opened) -> None:
    ring = opened(1, 3, Checks(1), lambda where: Silent(OPTIONS, where))
    assert "sends another frame of chunk 0 of operation 0x0 at offset" in ring.until_it_fails()


def test_every_kth_operation_is_checked(opened) -> None:
    checks = Checks(3)
    ring = opened(1, 2, checks, twin)
    for _ in range(4):
        for _ in range(3):
            assert ring.sum(DType.FLOAT32) == ""
        ring.wait()
    assert checks.counters() == {"device_checks_due": 4, "device_checks_done": 4}


def test_in_place_of_one_that_is_too_long_the_next_is_checked(opened) -> None:
    checks = Checks(2, most_bytes=400)
    ring = opened(0, 2, checks, twin)
    assert ring.sum(DType.FLOAT32, 10) == ""
    assert ring.sum(DType.FLOAT32, 101) == ""
    assert checks.counters() == {"device_checks_due": 1, "device_checks_done": 0}
    assert ring.sum(DType.FLOAT32, 100) == ""
    ring.wait()
    assert checks.counters() == {"device_checks_due": 1, "device_checks_done": 1}


def test_the_job_goes_on_while_an_operation_is_checked(opened) -> None:
    working, go_on = threading.Event(), threading.Event()

    class Slow(RingTwin):
        def advance(self) -> None:
            working.set()
            assert go_on.wait(50)

    checks = Checks(1)
    ring = opened(1, 2, checks, lambda where: Slow(OPTIONS, where))
    for _ in range(OPERATIONS):
        assert ring.sum(DType.FLOAT32) == ""
    assert working.wait(50)
    assert checks.counters() == {"device_checks_due": OPERATIONS, "device_checks_done": 0}
    go_on.set()
    ring.wait()


def test_closing_ends_a_check(opened) -> None:
    checks = Checks(1)
    ring = opened(1, 2, checks, twin)
    assert ring.sum(DType.FLOAT32) == ""
    ring.device.close()
    ring.device.close()
    assert not ring.device._again._thread.is_alive()
