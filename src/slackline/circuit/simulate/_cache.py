"""A cache of generated Verilog, so that simulations need not generate it again."""

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from slackline.circuit.options import NodeOptions, RingOptions
from slackline.circuit.simulate._verilog import Port, Verilog
from slackline.env import cache_folder

__all__ = ["cached_ethernet_node", "cached_node", "cached_ring", "cached_verilog"]

_HOME = Path(__file__).parents[2]
"""The folder of the package slackline."""
_SOURCES = ("circuit", "wire")
"""The packages whose sources decide what Verilog is generated, besides Amaranth."""


def cached_node(options: NodeOptions) -> Verilog:
    """Return the Verilog of an AggregationNode with these options, from the cache if possible."""

    def make() -> Verilog:
        from slackline.circuit.node import AggregationNode
        from slackline.circuit.simulate._convert import convert

        return convert("node", AggregationNode(options))

    return _cached("node", options, make)


def cached_ethernet_node(options: NodeOptions) -> Verilog:
    """Return the Verilog of an EthernetNode with these options, from the cache if possible.

    Its packets are streams of PacketBeat: see slackline.circuit.bus.PacketStreams.
    """

    def make() -> Verilog:
        from slackline.circuit.bus import PacketStreams
        from slackline.circuit.node import EthernetNode
        from slackline.circuit.simulate._convert import convert

        return convert("ethernet_node", PacketStreams(EthernetNode(options), options.lanes))

    return _cached("ethernet_node", options, make)


def cached_ring(options: RingOptions) -> Verilog:
    """Return the Verilog of a QueuedRingNic with these options, from the cache if possible."""

    def make() -> Verilog:
        from slackline.circuit.ring import QueuedRingNic
        from slackline.circuit.simulate._convert import convert

        return convert("ring", QueuedRingNic(options))

    return _cached("ring", options, make)


def _cached(name: str, parameters: object, make: Callable[[], Verilog]) -> Verilog:
    """Return the cached Verilog for these parameters; if there is none, call `make` and cache it.

    A change of the gateware's sources makes a cached entry invalid.
    """
    path = _path(name, parameters)
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    # The lock lets one process generate the Verilog while the others wait.
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            verilog = make()
            with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False) as file:
                json.dump(asdict(verilog), file)
            os.replace(file.name, path)
            return verilog
        return _read(path)


def cached_verilog(name: str, parameters: object) -> Verilog | None:
    """Return the cached Verilog of the "node" or "ring" with these parameters, or None."""
    path = _path(name, parameters)
    return _read(path) if path.exists() else None


def _path(name: str, parameters: object) -> Path:
    return cache_folder() / "circuits" / f"{name}-{_key(repr(parameters))}.json"


def _read(path: Path) -> Verilog:
    told = json.loads(path.read_text())
    ports = tuple(Port(**port) for port in told["ports"])
    return Verilog(name=told["name"], text=told["text"], ports=ports)


def _key(parameters: str) -> str:
    found = hashlib.sha256(f"{version('amaranth')}\n{parameters}\n".encode())
    for room in _SOURCES:
        for path in sorted((_HOME / room).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()[:32]
