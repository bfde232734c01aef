"""Tests that the checks of lanes and nodes find a circuit that is wrong in one place."""

from collections.abc import Callable

import numpy as np
import pytest
from circuit_driving import Node, lanes_differ, random_pairs, special_pairs
from mutating import Mutant, make

from slackline.circuit import Element, NodeOptions, Verilog, cached_node
from slackline.wire import DType

# The limit leaves time to compile a circuit on a busy machine.
pytestmark = [pytest.mark.simulates, pytest.mark.timeout(300)]

OPTIONS = NodeOptions(ports=3, lanes=1, slots=4, payload_bytes=64)


def lanes_fail(made: Verilog | None = None) -> str:
    """Return the first wrong sum of lanes, those of `made` or of the present gateware, or ""."""
    from slackline.circuit import Lanes, Simulation, convert

    with Simulation(made or convert("lanes", Lanes(1))) as simulation:
        rng = np.random.default_rng(1)
        pairs = [special_pairs(), random_pairs(rng, 20_000)]
        return "".join(lanes_differ(simulation, 1, *each, Element.FLOAT32) for each in pairs)


def node_fails(drive: Callable[[Node], str], made: Verilog | None, **settings: int) -> str:
    from slackline.circuit import AggregationNode, Simulation, convert

    with Simulation(made or convert("node", AggregationNode(OPTIONS))) as simulation:
        return drive(Node(simulation, OPTIONS, **settings))


def threshold_fails(made: Verilog | None = None) -> str:
    """Check that two frames at each port reach a threshold of 2; return the first error, or ""."""

    def drive(node: Node) -> str:
        parts = node.messages(np.random.default_rng(1), DType.FLOAT32, 64)
        node.send_all([own[:2] for own in parts])
        return node.difference(1000)

    return node_fails(drive, made, threshold=2)


def credit_fails(made: Verilog | None = None) -> str:
    """Check that a slow reader loses nothing; return the first difference, or an empty string."""

    def drive(node: Node) -> str:
        node.simulation.stall(0, 0.95, 1, output=True)
        rng = np.random.default_rng(2)
        for tag in range(20):
            node.send_all(node.messages(rng, DType.INT32, 16, tag))
        return node.difference()

    return node_fails(drive, made)


def doubled_fails(made: Verilog | None = None) -> str:
    """Check that a frame that comes twice is added once; return the first difference, or ""."""

    def drive(node: Node) -> str:
        parts = node.messages(np.random.default_rng(3), DType.FLOAT32, 32)
        for port, own in enumerate(parts):
            for frame in own:
                node.send(port, frame)
                node.send(port, frame)
        return node.difference()

    return node_fails(drive, made)


def kept_fails(made: Verilog | None = None) -> str:
    """Check that no sum is given before it is complete, although the slot holds an older sum.

    The result is the first difference, or an empty string.
    """

    def drive(node: Node) -> str:
        rng = np.random.default_rng(4)
        for tag in range(node.options.slots):
            node.send_all(node.messages(rng, DType.FLOAT32, 4, tag))
        node.simulation.step(1000)
        parts = node.messages(rng, DType.FLOAT32, 4)
        for port, own in enumerate(parts):
            node.send(port, own[0])
            node.send(port, own[0], not_before=node.simulation.step(0) if port == 0 else 5000)
            node.simulation.step(500)
        found = node.difference()
        again = [node.read(f"port{port}_resent") for port in range(3)]
        return found or ("" if again == [0, 1, 1] else "other sums were given again")

    return node_fails(drive, made)


ADDER = ("datapath._adder", ("Adder",), ("datapath._lanes",))
MUTANTS = {
    "ties go up": Mutant(*ADDER, " & (r.total10[:3].any() | r.total10[4])", "", lanes_fail),
    "no sticky bit": Mutant(*ADDER, "aligned[0] | sticky | r.sticky4", "aligned[0]", lanes_fail),
    "subnormals vanish": Mutant(*ADDER, "Mux(normal_big, e_big, 1)", "e_big", lanes_fail),
    "threshold": Mutant(
        "node._issuer",
        ("Issuer",),
        ("node._aggregation",),
        "fill >= self.threshold",
        "fill > self.threshold",
        threshold_fails,
    ),
    "credit": Mutant(
        "node._reducer",
        ("Reducer",),
        ("node._aggregation",),
        "credits - self.uses_room",
        "credits - (self.uses_room & (credits > 1))",
        credit_fails,
    ),
    "kept sums": Mutant(
        "node._sender",
        ("Sender",),
        ("node._sum_buffer",),
        "& (self.ended.number == wanted.number)",
        "",
        kept_fails,
    ),
    "sequence": Mutant(
        "node._receiver",
        ("Receiver",),
        ("node._aggregation",),
        "steps = behind(header.sequence, expected)",
        "steps = behind(header.sequence, expected) & 0",
        doubled_fails,
    ),
}


IN_FULL_ONLY = set(MUTANTS) - {"ties go up"}
"""Mutants that are left to `make test-full`, because each takes a compilation."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in IN_FULL_ONLY else [])
        for name in MUTANTS
    ],
)
def test_a_mutant_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    make(mutant, monkeypatch)
    assert mutant.check() != ""


@pytest.mark.parametrize("check", list({each.check: 0 for each in MUTANTS.values()}))
def test_the_circuit_passes_where_mutants_fail(check: Callable[..., str]) -> None:
    assert check(None if check is lanes_fail else cached_node(OPTIONS)) == ""
