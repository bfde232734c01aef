"""A cache of generated Verilog, so that a process that only simulates generates none."""

import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from slackline.circuit._options import NodeOptions
from slackline.circuit._ring_device import RingOptions
from slackline.circuit._verilog import Port, Verilog
from slackline.env import cache_folder

__all__ = ["kept_already", "kept_node", "kept_ring"]

_SOURCES = ("circuit", "wire")
"""The packages whose sources decide what Verilog is generated, besides Amaranth."""


def kept_node(options: NodeOptions) -> Verilog:
    """Return the Verilog of an AggregationNode with these options, from the cache if possible."""

    def make() -> Verilog:
        from slackline.circuit._convert import convert
        from slackline.circuit._node import AggregationNode

        return convert("node", AggregationNode(options))

    return _kept("node", options, make)


def kept_ring(options: RingOptions) -> Verilog:
    """Return the Verilog of a QueuedRingNic with these options, from the cache if possible."""

    def make() -> Verilog:
        from slackline.circuit._convert import convert
        from slackline.circuit._ring_queued import QueuedRingNic

        return convert("ring", QueuedRingNic(options))

    return _kept("ring", options, make)


def _kept(name: str, parameters: object, make: Callable[[], Verilog]) -> Verilog:
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


def kept_already(name: str, parameters: object) -> Verilog | None:
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
    home = Path(__file__).parents[1]
    for room in _SOURCES:
        for path in sorted((home / room).glob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()[:32]
