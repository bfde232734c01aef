"""Adapter that makes simulated devices for groups from `slackline.circuit`.

A "circuit" is simulated by Verilator; a "twin" is its model in Python, equal to the last bit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from slackline.env import NICS, parse_circuit
from slackline.errors import InternalError, TimeoutError, UsageError
from slackline.nic.offload._device import Device, Node, NodeHost, Post
from slackline.nic.offload._ring_host import RingHost
from slackline.records import STALLS, cycles_text
from slackline.units import count
from slackline.wire import DType, FrameKind, decode

if TYPE_CHECKING:
    from slackline.circuit import Checks, NodeOptions, RingDevice, RingOptions, RingPlace, Verilog

__all__ = ["Devices", "Nodes", "check_sums"]

_Counts = Mapping[str, int]
_log = logging.getLogger("slackline.nic")

_NO_JOB = 0
"""The value of the field `job` in frames to a device. The rails have already refused
unauthenticated frames."""


_RING: Mapping[str, Mapping[str, int]] = {"twin": {}, "circuit": {"lanes": 4, "slots": 4}}
_NODE: Mapping[str, int] = {"lanes": 4, "slots": 4, "payload_bytes": 4096}
"""The default sizes of ring NICs and aggregation nodes. A small circuit is compiled and simulated
faster."""
_CHECK_EVERY = 1000
"""The default check interval: one in this many operations of a twin (the Python model) is repeated
by a circuit. A circuit takes about thirty times the processor time of its twin."""
_MOST_PORTS = 16
_SOURCE = 0xFFFF
_CYCLES_A_BEAT = 16
"""The cycle limit per beat (one word for each adder); a simulated node that needs more cycles
counts as hung."""


def _sizes(text: str) -> dict[str, int]:
    """Return the circuit options that `text` asks for; see slackline.env.parse_circuit."""
    names = {"payload": "payload_bytes"}
    return {names.get(name, name): value for name, value in parse_circuit(text).items()}


class Devices:
    """A factory of ring NICs, "twin" (model in Python) or "circuit", for a nic's groups."""

    def __init__(self, kind: str, check: int | None = None, sizes: str = "") -> None:
        """Check that ring NICs of this kind work here; raise UsageError otherwise.

        `sizes` sets the sizes of the circuit and of its twin; see slackline.env.parse_circuit. With
        `check` N, one in N operations of a twin is repeated on a circuit; with 0, none is. With
        None, one in a thousand is repeated if the circuit has been compiled on this machine. A
        circuit that is needed for the first time on a machine is compiled here. That can take
        minutes, and other processes wait for the result.
        """
        self.kind = _checked(kind)
        from slackline.circuit import RingOptions

        asked = _sizes(sizes)
        self._options = RingOptions(**{**_RING[kind], **asked})
        self._circuit_options = RingOptions(**{**_RING["circuit"], **asked})
        self._checks = self._opened_checks(check) if kind == "twin" else None
        if kind == "circuit":
            _prepare_ring(self._options)

    @property
    def payload_bytes(self) -> int:
        """The longest payload of a frame, in bytes, that the devices take."""
        return self._options.payload_bytes

    def counters(self) -> Mapping[str, int]:
        """Return how many operations were selected for a check by a circuit, and how many passed.

        The result is empty if operations are not checked.
        """
        return {} if self._checks is None else self._checks.counters()

    def ring(self, rank: int, size: int, epoch: int, plan: int, starts: int) -> Device:
        """Return a ring NIC for this rank of a group.

        `plan` is the number that frames carry for the group's plan, and `starts` the number of
        ranks at which operations start. Raises UsageError if the NIC cannot hold one operation for
        each starting rank.
        """
        most = self._options.operations
        if starts > most:
            raise UsageError(
                f"a ring NIC ({self.kind}) can take operations that start at {most} ranks, "
                f"not {starts}: do not set the plan",
                rank=rank,
            )
        return RingHost(lambda: self._open(rank, size, epoch, plan), post_operation, most, starts)

    def _open(self, rank: int, size: int, epoch: int, plan: int) -> RingDevice:
        from slackline.circuit import RingPlace

        place = RingPlace(rank=rank, ranks=size, job=_NO_JOB, epoch=epoch, plan_id=plan)
        if self.kind == "circuit":
            return _ring_circuit(self._options, place)
        from slackline.circuit import CheckedRing, RingTwin

        twin = RingTwin(self._options, place)
        if self._checks is None:
            return twin
        options = self._circuit_options
        return CheckedRing(twin, lambda: _ring_circuit(options, place), place, self._checks)

    def _opened_checks(self, check: int | None) -> Checks | None:
        """Return the checker that repeats a twin's operations on a circuit, or None without it."""
        if check == 0:
            return None
        from slackline.circuit import Checks, built, cached_verilog, missing_tools

        options = self._circuit_options
        if check is None:
            # The check is optional here, so it must not cost a compilation of minutes.
            verilog = cached_verilog("ring", options)
            if verilog is None or not built(verilog):
                _log.info("the twin is not checked: no circuit has been compiled on this machine")
                return None
            return Checks(_CHECK_EVERY)
        if missing := missing_tools():
            raise UsageError(f"the twin cannot be checked by a circuit here: {missing}")
        _prepare_ring(options)
        return Checks(check)


class Nodes:
    """A factory of aggregation nodes, "twin" (model in Python) or "circuit", for groups."""

    def __init__(self, kind: str, workers: int, sizes: str = "") -> None:
        """Check that aggregation nodes of this kind work here; raise UsageError otherwise.

        A circuit has exactly `workers` ports. A twin has as many ports as its group has workers.
        """
        asked = _sizes(sizes)
        if "operations" in asked:
            raise UsageError(f"an aggregation node takes no size 'operations', as in {sizes!r}")
        self._sizes = {**_NODE, **asked}
        self.kind = _checked(kind)
        if workers > _MOST_PORTS:
            raise UsageError(f"an aggregation node has at most {_MOST_PORTS} ports, not {workers}")
        self._workers = workers
        if kind == "circuit":
            _prepare_node(self._options(workers))

    def refusal(self, workers: int) -> str:
        """Return the reason why no group of `workers` ranks can be served; "" if one can."""
        if self.kind == "circuit" and workers != self._workers:
            return f"its circuit has {self._workers} ports, for groups of as many, not {workers}"
        return ""

    def node(self, workers: int, epoch: int) -> NodeHost:
        """Return a new aggregation node for a group of `workers` ranks."""
        return NodeHost(self._open(workers, epoch), workers, self._sizes["payload_bytes"])

    def close(self) -> None:
        """Do nothing: each node is closed with its group."""

    def _open(self, workers: int, epoch: int) -> Node:
        options = self._options(workers)
        if self.kind == "twin":
            return _Twin(options, epoch)
        from slackline.circuit import cached_node

        return _Circuit(cached_node(options), options, epoch)

    def _options(self, workers: int) -> NodeOptions:
        from slackline.circuit import NodeOptions

        return NodeOptions(ports=workers, **self._sizes)


_PROBLEMS = ("malformed", "foreign", "unordered", "awaited", "untaken")
"""The counters of a node's port that tell why a sum is missing."""


def check_sums(
    sets: list[list[bytes]], found: list[bytes], counters: Callable[[], _Counts]
) -> None:
    """Raise InternalError, with the node's reason, unless `found` has a sum of each set."""
    for number, frame in enumerate(found):
        if decode(frame).kind is not FrameKind.DATA:
            raise InternalError(
                f"the node does not add frames that differ: {_unlike(sets[number])}"
            )
    if len(found) < len(sets):
        named = [
            f"port {port}: {count} {name}"
            for port in range(len(sets[0]))
            for name in _PROBLEMS
            if (count := counters().get(f"port{port}_{name}", 0))
        ]
        raise InternalError(
            f"the node gave {len(found)} of {len(sets)} sums; its counters: "
            + (", ".join(named) or "no frame was dropped, and no port waited for")
        )


def _unlike(frames: list[bytes]) -> str:
    """Return which header fields differ between the first frame and another, with both values."""
    first, *others = (decode(frame) for frame in frames)
    names = ("dtype", "tag", "sequence", "offset", "total", "length", "flags")
    unlike = [
        f"{name} is {getattr(first, name)!r} at port 0 and {getattr(other, name)!r} at port {port}"
        for port, other in enumerate(others, 1)
        for name in names
        if getattr(first, name) != getattr(other, name)
    ]
    return "; ".join(unlike[:3])


class _Twin:
    """An aggregation node modelled in Python."""

    remark = ""

    def __init__(self, options: NodeOptions, epoch: int) -> None:
        from slackline.circuit import NodeTwin

        self._twin = NodeTwin(options=options, job=_NO_JOB, epoch=epoch, source=_SOURCE)

    def add(self, sets: list[list[bytes]]) -> list[bytes]:
        found = []
        for parts in sets:
            for port, frame in enumerate(parts):
                found += self._twin.receive(port, frame)
        check_sums(sets, found, self._counters)
        return found

    def _counters(self) -> _Counts:
        return {
            f"port{port}_{name}": count
            for port, events in enumerate(self._twin.events)
            for name, count in events.items()
        }

    def close(self) -> None:
        """Do nothing: the model in Python holds no resources."""


class _Circuit:
    """An aggregation node as a circuit that Verilator simulates."""

    def __init__(self, verilog: Verilog, options: NodeOptions, epoch: int) -> None:
        from slackline.circuit import Simulation, node_registers

        self._options = options
        self.remark = ""
        """The node's cycles and stalls, once it is closed."""
        self._simulation = Simulation(verilog)
        self._registers = {each.name: each.address for each in node_registers(options)}
        settings = {"job": _NO_JOB, "epoch": epoch, "source": _SOURCE, "threshold": 1, "control": 1}
        for name, value in settings.items():
            self._simulation.write(self._registers[name], value)

    def add(self, sets: list[list[bytes]]) -> list[bytes]:
        found: list[bytes] = []
        options = self._options
        for start in range(0, len(sets), options.slots):
            several = sets[start : start + options.slots]
            for parts in several:
                for port, frame in enumerate(parts):
                    self._simulation.send(port, frame)
            beats = len(several) * (options.header_beats + options.slot_beats)
            limit = _CYCLES_A_BEAT * (beats + 100)
            with suppress(TimeoutError):
                self._simulation.run(len(several), cycles=limit, frames=True)
            given = [
                [frame for frame, _, _ in self._simulation.frames(port)]
                for port in range(options.ports)
            ]
            found += given[0]
            check_sums(several, min(given, key=len), self._counters)
        return found

    def _counters(self) -> _Counts:
        return {name: self._simulation.read(at) for name, at in self._registers.items()}

    def close(self) -> None:
        if not self.remark:
            counters = self._counters()
            cycles = self._simulation.step(0)
            stalls = {name: counters[name] for name in STALLS if name in counters}
            shares = cycles_text(cycles, counters["busy"], stalls)
            self.remark = f", {count(cycles, 'cycle')} ({shares})"
            self._simulation.close()


def _checked(kind: str) -> str:
    """Return `kind`; raise UsageError if it is unknown or cannot be simulated here."""
    if kind not in NICS or kind == "software":
        raise UsageError(f"a device is one of {', '.join(NICS[1:])}, not {kind!r}")
    from slackline.circuit import missing_tools

    if kind == "circuit" and (missing := missing_tools()):
        raise UsageError(f"the nic 'circuit' cannot be simulated here: {missing}")
    return kind


def _prepare_ring(options: RingOptions) -> None:
    from slackline.circuit import cached_ring, prepare

    prepare(cached_ring(options))


def _prepare_node(options: NodeOptions) -> None:
    from slackline.circuit import cached_node, prepare

    prepare(cached_node(options))


def _ring_circuit(options: RingOptions, place: RingPlace) -> RingDevice:
    from slackline.circuit import RingCircuit

    return RingCircuit(options, place)


def post_operation(nic: RingDevice, post: Post) -> None:
    """Open an operation of the engine in a ring NIC."""
    from slackline.circuit import RingOperation

    tag, chunk, start, dtype, total, frame_bytes, _, address = post
    nic.post(
        RingOperation(
            tag=tag,
            chunk=chunk,
            start=start,
            dtype=DType(dtype),
            total=total,
            frame_bytes=frame_bytes,
            source=address,
            target=address,
        )
    )
