"""Tests of a simulated node on a real wire: real packets, real ranks, and wires with faults."""

import hashlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim
from wires import Wire, needs_wires

from slackline.circuit import NodeOptions
from slackline.errors import InternalError, UsageError
from slackline.nic.offload import EthernetNodes
from slackline.overlap import DataParallel
from slackline.wire import Collective, DType, FrameKind, Header, ReduceOp, decode, encode

# The limit leaves time to compile a circuit on a busy machine.
pytestmark = [pytest.mark.simulates, needs_wires, pytest.mark.timeout(300)]

SIZES = NodeOptions(ports=2, lanes=1, slots=8, payload_bytes=256)
MAC = "02:53:4c:00:00:00"
LONG, SHORT = timedelta(seconds=60), timedelta(seconds=1)
PATIENT = {"timeout": timedelta(seconds=120), "seconds": 150}


class Circuit:
    """A `slackline circuit node` process on an interface."""

    def __init__(self, interface: str) -> None:
        options = {
            "interface": interface,
            "ports": SIZES.ports,
            "lanes": SIZES.lanes,
            "slots": SIZES.slots,
            "payload": f"{SIZES.payload_bytes}B",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        program = "from slackline.cli import main; raise SystemExit(main())"
        self._command = [sys.executable, "-c", program, "circuit", "node", *words]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        assert said.startswith("node of 2 ports at "), said

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def restart(self) -> None:
        self.kill()
        self.start()

    def ended(self) -> dict[str, int]:
        """End the process as Ctrl-C does; return the counts that it prints."""
        self.process.terminate()
        printed, _ = self.process.communicate(timeout=60)
        found = re.fullmatch(
            r"(?P<received>\d+) packets in, (?P<sent>\d+) out, (?P<unsent>\d+) not taken, "
            r"(?P<dropped>\d+) dropped, (?P<cycles>\d+) cycles; processor time: "
            r"[\d.]+ us a packet, and a second for \d+ cycles\n",
            printed,
        )
        assert found is not None, printed
        assert self.process.returncode == 0
        return {name: int(number) for name, number in found.groupdict().items()}


@pytest.fixture
def wired() -> Iterator[Callable[..., tuple[Wire, Circuit]]]:
    """Provide a wire with the faults asked for, and a node at its far end."""
    with ExitStack() as stack:

        def make(**faults: Any) -> tuple[Wire, Circuit]:
            wire = stack.enter_context(Wire(**faults))
            circuit = Circuit(wire.ends[1])
            stack.callback(lambda: circuit.process.poll() is None and circuit.kill())
            return wire, circuit

        yield make


@pytest.fixture
def reached() -> Iterator[Callable[..., EthernetNodes]]:
    """Provide the node at the far end of a wire, as an aggregator reaches it."""
    with ExitStack() as stack:

        def reach(wire: Wire, patience: timedelta = LONG) -> EthernetNodes:
            return stack.enter_context(closing(EthernetNodes(wire.ends[0], MAC, patience)))

        yield reach


@pytest.fixture
def hashed() -> Iterator[Callable[..., EthernetNodes]]:
    """Provide the node at the far end of a wire, with hashes of its sums."""
    with ExitStack() as stack:

        def reach(wire: Wire) -> EthernetNodes:
            made = EthernetNodes(wire.ends[0], MAC, LONG, hashed=True)
            return stack.enter_context(closing(made))

        yield reach


def frame(port: int, number: int, values: Any) -> bytes:
    data = values.tobytes()
    header = Header(
        kind=FrameKind.DATA,
        epoch=5,
        source=port,
        dtype=DType.FLOAT32,
        collective=Collective.ALL_REDUCE,
        reduce_op=ReduceOp.SUM,
        tag=number,
        sequence=number,
        total=len(data),
        length=len(data),
    )
    return encode(header) + data


def contributions(count: int, first: int = 1) -> tuple[list[list[bytes]], list[bytes]]:
    """Return sets of frames of two ranks, and the payloads of their sums."""
    draw = np.random.default_rng(first)
    sets, sums = [], []
    for number in range(first, first + count):
        parts = draw.standard_normal((2, int(draw.integers(1, 65))), np.float32)
        sets.append([frame(port, number, part) for port, part in enumerate(parts)])
        sums.append((parts[0] + parts[1]).tobytes())
    return sets, sums


def added(node: Any, sets: list[list[bytes]]) -> list[bytes]:
    found = node.add(sets)
    assert [decode(each).sequence for each in found] == [decode(s[0]).sequence for s in sets]
    return [each[64:] for each in found]


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param({}, id="none"),
        pytest.param({"lost": 0.05, "doubled": 0.05, "late": 0.05, "seed": 1}, id="all"),
        pytest.param({"lost": 0.005, "seed": 2}, id="lost", marks=pytest.mark.slow),
        pytest.param({"doubled": 0.5, "seed": 3}, id="doubled", marks=pytest.mark.slow),
        pytest.param({"late": 0.3, "seed": 4}, id="late", marks=pytest.mark.slow),
    ],
)
def test_every_sum_is_right_whatever_the_wire_does(wired, reached, faults) -> None:
    wire, circuit = wired(**faults)
    nodes = reached(wire)
    assert nodes.options == SIZES
    node = nodes.node(2, 5)._node
    for first in (1, 101):
        sets, sums = contributions(100, first)
        assert added(node, sets) == sums
    # A busy machine may send frames again that nobody has lost.
    assert not (faults.get("lost") and ", 0 frames sent again" in node.remark)
    node.close()
    counts = circuit.ended()
    assert counts["dropped"] == counts["unsent"] == 0
    assert counts["sent"] >= 400


def test_a_node_that_is_killed_and_restarted_goes_on_with_the_same_sums(wired, reached) -> None:
    wire, circuit = wired()
    nodes = reached(wire)
    node = nodes.node(2, 5)._node
    sets, sums = contributions(200)
    wire.at(wire.passed + 300, circuit.restart)
    assert added(node, sets) == sums
    assert node.remark.endswith(" sent again, 1 restart of the node")
    node.close()
    # Another group finds the node as a first one would.
    again = nodes.node(2, 5)._node
    sets, sums = contributions(10)
    assert added(again, sets) == sums
    again.close()


def test_the_hash_of_the_sums_is_that_of_software(wired, hashed) -> None:
    wire, _ = wired()
    node = hashed(wire).node(2, 5)._node
    sets, sums = contributions(20)
    assert added(node, sets) == sums
    expected = hashlib.sha256(b"".join(sums)).hexdigest()[:16]
    said = f", its sums have hash {expected}, those of software {expected}"
    assert node.remark.endswith(said)
    node.close()


def test_a_node_that_is_gone_fails_and_says_so(wired, reached) -> None:
    wire, circuit = wired()
    node = reached(wire, SHORT).node(2, 5)._node
    circuit.kill()
    with pytest.raises(InternalError) as caught:
        node.add(contributions(1)[0])
    node.close()
    said = r"the node has given no sum for \d\.\d s, and does not answer for its registers"
    assert re.fullmatch(said, str(caught.value))


def test_a_group_that_another_one_displaces_fails_and_the_other_one_goes_on(wired, reached) -> None:
    wire, _ = wired()
    old = reached(wire).node(2, 4)._node
    new = reached(wire).node(2, 5)._node
    sets, sums = contributions(20)
    assert added(new, sets) == sums
    with pytest.raises(InternalError) as caught:
        old.add(sets)
    old.close()
    assert str(caught.value) == "another group has taken the node"
    sets, sums = contributions(20, first=21)
    assert added(new, sets) == sums
    new.close()


def test_a_node_serves_one_group_at_a_time_and_no_more_ranks_than_ports(wired, reached) -> None:
    wire, _ = wired()
    nodes = reached(wire)
    assert nodes.refusal(3) == "its node has 2 ports, not 3"
    host = nodes.node(2, 5)
    assert nodes.refusal(2) == "its node serves another group"
    host.close()
    assert nodes.refusal(2) == ""


def test_without_a_node_or_an_interface_the_error_says_what_to_give() -> None:
    with Wire() as wire, pytest.raises(UsageError) as caught:
        EthernetNodes(wire.ends[0], MAC, SHORT)
    assert str(caught.value) == (
        f"no aggregation node answers at {MAC} behind {wire.ends[0]}: start it, or give its "
        "address with --node-mac"
    )
    with pytest.raises(UsageError) as caught:
        EthernetNodes("none", MAC, SHORT)
    assert str(caught.value) == "there is no interface 'none' on this host"


def trained(rank, size):
    """Train a model, and return a digest of its parameters."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model = DataParallel(model, optimizer)
    draw = torch.Generator().manual_seed(rank)
    for _ in range(6):
        batch = torch.randn(32, 64, generator=draw)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def through(job, nodes, *arguments: str) -> tuple[set[str], str]:
    """Train two ranks through an aggregator; return their digests and the aggregator's log."""
    node = nodes("--workers", "2", *arguments)
    digests = job(2, trained, environment=node.environment(SLACKLINE_TIMEOUT="120s"), **PATIENT)
    assert node.interrupt() == 0
    return set(digests), node.log


FRAMES = re.compile(
    r", (\d+) frames by its Ethernet node \((\d[\d.]* [KM]iB)\), (\d+) frames sent again"
)


def test_training_through_a_node_on_the_wire_has_the_bits_of_software(job, nodes, wired) -> None:
    wire, circuit = wired()
    software, _ = through(job, nodes)
    digests, log = through(job, nodes, "--node", "ethernet", "--interface", wire.ends[0])
    assert digests == software
    assert len(digests) == 1
    found = FRAMES.search(log)
    assert found is not None, log
    assert int(found[1]) > 6 * 2
    assert circuit.ended()["sent"] > 4 * int(found[1])


@pytest.mark.slow
@pytest.mark.parametrize("fate", ["bad wire", "restart", "gone"])
def test_training_survives_the_wire_and_the_node_with_the_same_bits(
    job, nodes, wired, fate
) -> None:
    faults = {"lost": 0.005, "doubled": 0.01, "late": 0.01} if fate == "bad wire" else {}
    wire, circuit = wired(**faults)
    software, _ = through(job, nodes)
    if fate != "bad wire":
        wire.at(1000, circuit.restart if fate == "restart" else circuit.kill)
    patience = "1s" if fate == "gone" else "60s"
    node = ("--node", "ethernet", "--interface", wire.ends[0], "--node-patience", patience)
    digests, log = through(job, nodes, *node)
    assert digests == software
    if fate == "gone":
        assert "its Ethernet node failed: the node has given no sum for" in log
    else:
        found = FRAMES.search(log)
        assert found is not None, log
        assert int(found[3]) > 0
        assert ("1 restart of the node" in log) == (fate == "restart")
