"""Tests of a ring NIC, with its queues, whose host's memory cannot be read."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from slackline.circuit import (
    COMPLETION,
    DESCRIPTOR,
    Code,
    RingOptions,
    Simulation,
    Verilog,
    cached_ring,
    ring_registers,
)
from slackline.wire import DType, FrameKind, Header, decode, encode

pytestmark = [pytest.mark.slow, pytest.mark.simulates, pytest.mark.timeout(600)]

OPTIONS = RingOptions(lanes=1, slots=4, payload_bytes=128, operations=2)
AT = {each.name: each.address for each in ring_registers(OPTIONS)}
FRAME = 64
"""The bytes of each of the two frames of an operation."""


def answered_here() -> Verilog:
    """Return a NIC whose memory is the test: the harness does not know the names of its streams."""
    made = cached_ring(OPTIONS)

    def other(text: str) -> str:
        for name in ("read_data", "read_requests", "write_requests", "write_data"):
            text = text.replace(f"{name}__", f"host_{name}__")
        return text

    ports = tuple(replace(port, name=other(port.name)) for port in made.ports)
    return Verilog(name="ring", text=other(made.text), ports=ports)


class Host:
    """A host whose memory answers as the test wants."""

    def __init__(self, nic: Simulation, verilog: Verilog) -> None:
        self.nic = nic
        ends = [port for port in verilog.ports if port.name.endswith("__payload")]
        self.to = {
            port.name.removesuffix("__payload"): k
            for inward in (True, False)
            for k, port in enumerate([each for each in ends if each.input == inward])
        }
        for name, value in {
            "rank": 0,
            "ranks": 2,
            "plan": 1,
            "timeout": 0xFFFFFFFF,
            "descriptor_bits": 1,
            "completion_bits": 1,
            "control": 1,
        }.items():
            nic.write(AT[name], value)

    def answer(self, data: bytes, *, bad: bool = False) -> None:
        """Answer the oldest read."""
        beats = np.zeros((len(data) // 4, 5), np.uint8)
        beats[:, :4] = np.frombuffer(data, np.uint8).reshape(-1, 4)
        beats[-1, 4] = 3 if bad else 1
        self.nic.push(self.to["host_read_data"], beats)
        self.nic.step(300)

    def post(self, tag: int, *, bad: bool = False, size: int = 64) -> None:
        fields = {"tag": tag, "total": 2 * FRAME, "frame_bytes": FRAME, "dtype": DType.FLOAT32}
        self.nic.write(AT["descriptor_tail"], 1)
        self.nic.step(100)
        self.answer(DESCRIPTOR.pack(fields)[:size], bad=bad)

    def sums(self) -> list[list[float]]:
        """Return the payload of each DATA frame for the successor."""
        sent = [frame for frame, _, _ in self.nic.frames(self.to["tx"])]
        return [
            np.frombuffer(frame[64:], np.float32).tolist()
            for frame in sent
            if decode(frame).kind is FrameKind.DATA
        ]

    def completions(self) -> list[tuple[int, Code]]:
        beats, _ = self.nic.pull(self.to["host_write_data"])
        data = beats[:, :4].tobytes()
        entries = [COMPLETION.unpack(data[at : at + 16]) for at in range(0, len(data), 16)]
        return [(each["tag"], Code(each["code"])) for each in entries]


@pytest.fixture
def host() -> Iterator[Any]:
    verilog = answered_here()
    with Simulation(verilog) as nic:
        yield Host(nic, verilog)


def granted(host: Host, tag: int) -> None:
    header = Header(kind=FrameKind.GRANT, tag=tag, offset=1, source=1, plan_id=1)
    host.nic.send(host.to["tx_back"], encode(header))
    host.nic.step(300)


def of(value: float, count: int = FRAME // 4) -> bytes:
    return np.full(count, value, np.float32).tobytes()


@pytest.mark.parametrize(
    "wrong", [(of(2), True), (of(2, 3), False), (of(2, 17), False)], ids=["bad", "short", "long"]
)
def test_a_failed_read_ends_its_operation_with_a_code_and_sends_no_data(
    host: Host, wrong: tuple[bytes, bool]
) -> None:
    host.post(7)
    granted(host, 7)
    host.answer(of(1))
    host.answer(wrong[0], bad=wrong[1])
    assert host.sums() == [[1.0] * 16]
    assert host.completions() == [(7, Code.READ)]
    assert host.nic.read(AT["reads_failed"]) == 1


@pytest.mark.parametrize(("size", "bad"), [(64, True), (60, False)], ids=["bad", "short"])
def test_a_descriptor_that_cannot_be_read_opens_no_operation(
    host: Host, size: int, bad: bool
) -> None:
    host.post(7, bad=bad, size=size)
    granted(host, 7)
    assert [code for _, code in host.completions()] == [Code.READ]
    assert host.sums() == []
    assert host.nic.read(AT["descriptors_refused"]) == 1
