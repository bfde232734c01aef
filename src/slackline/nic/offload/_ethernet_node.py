"""A node elsewhere that adds for a group: frames and sums as packets of a real interface.

The wire may lose, double, reorder and damage packets, and the node may be restarted at any time:

- at most as many frames of a port as the node has slots are under way without a sum;
- frames whose sum does not come are sent again, first after a few round trips and then ever more
  seldom; the node adds nothing twice, and sends the sum that it keeps;
- a sum that comes again is dropped;
- a node that was restarted is opened again at the first frame that has no sum, and adds the frames
  anew, so the sums have the same bits. The frames then carry another `job`, so that a sum that the
  node had sent before cannot arrive late and move the window past frames that the node awaits;
- a node that is silent for longer than the aggregator's patience fails, and the workers go on
  without it.
"""

from __future__ import annotations

import hashlib
import logging
import select
import threading
import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from slackline.errors import InternalError, SlacklineError, UsageError
from slackline.nic.offload._circuit_nic import check_sums
from slackline.nic.offload._device import NodeHost
from slackline.nic.offload._node_registers import NodeRegisters, NodeSilentError
from slackline.units import count
from slackline.wire import HEADER_BYTES, decode, encode

if TYPE_CHECKING:
    import socket

    from slackline.circuit import NodeOptions

__all__ = ["EthernetNodes"]

_log = logging.getLogger("slackline.nic.aggregator")

_IDENTITY, _VERSION = 0x534C4E44, 2
_NO_JOB = 0
"""The job of the frames that the engine gives and takes. A node's frames carry the number of its
restarts in this field."""
_SOURCE = 0xFFFF
_ASKING = timedelta(milliseconds=300)
"""The wait for one register while the node may be gone."""
_FIRST_RESEND_S, _LEAST_RESEND_S, _MOST_RESEND_S = 0.05, 0.005, 0.4
_ROUND_TRIPS = 4
"""The round trips after which frames are sent again."""
_SILENT_TURNS = 3
"""The turns of resending, without a sum, after which the node's registers are read."""
_ETHERNET_BYTES = 14
_LONGEST_PACKET = 9216


class EthernetNodes:
    """A factory of aggregation nodes for groups: always the one node behind an interface."""

    kind = "Ethernet node"

    def __init__(
        self, interface: str, mac: str, patience: timedelta, *, hashed: bool = False
    ) -> None:
        """Find the node; raise UsageError if there is none, or one that this version cannot use.

        A node that is silent for `patience` fails. With `hashed`, software adds the same frames
        beside the node, and both sums are hashed for the aggregator's log.
        """
        from slackline.circuit import REGISTERS_ETHERTYPE, mac_of, packet_socket, parse_mac

        self._interface, self._mac = interface, parse_mac(mac)
        self._host = mac_of(interface)
        self._wire = packet_socket(interface, REGISTERS_ETHERTYPE)
        self.patience, self.hashed = patience, hashed
        self._lock = threading.Lock()
        self._used = False
        self._registers = NodeRegisters(self._wire, self._host, self._mac, _addresses())
        try:
            self.options = self._identified()
        except NodeSilentError:
            self._wire.close()
            raise UsageError(
                f"no aggregation node answers at {mac} behind {interface}: start it, or give its "
                "address with --node-mac"
            ) from None

    def refusal(self, workers: int) -> str:
        """Return the reason why no group of `workers` ranks can be served now; "" if one can."""
        if workers > self.options.ports:
            return f"its node has {self.options.ports} ports, not {workers}"
        with self._lock:
            return "its node serves another group" if self._used else ""

    def node(self, workers: int, epoch: int) -> NodeHost:
        """Return the node, opened for a group of `workers` ranks, until it is closed."""
        with self._lock:
            if self._used:
                raise InternalError("the aggregator's node serves another group")
            self._used = True
        try:
            made = _WiredNode(self, workers, epoch)
        except BaseException:
            self.free()
            raise
        return NodeHost(made, workers, self.options.payload_bytes)

    def close(self) -> None:
        """Close the socket for registers; close the group's node before."""
        self._wire.close()

    def free(self) -> None:
        """Let another group use the node."""
        with self._lock:
            self._used = False

    def open_wire(self) -> socket.socket:
        """Return a packet socket for frames."""
        from slackline.circuit import ETHERTYPE, packet_socket

        return packet_socket(self._interface, ETHERTYPE)

    @property
    def registers(self) -> NodeRegisters:
        """The node's registers; only the group that uses the node may use them."""
        return self._registers

    def header(self, port: int) -> bytes:
        """Return the Ethernet header of frames to a port."""
        from slackline.circuit import packet_of

        return packet_of(b"", destination=self._mac + port, source=self._host)

    def port_of(self, packet: bytes) -> int | None:
        """Return the port that has sent a packet of frames to this host, or None for others."""
        source = int.from_bytes(packet[6:12], "big") - self._mac
        ours = int.from_bytes(packet[:6], "big") == self._host
        return source if ours and 0 <= source < self.options.ports else None

    def _identified(self) -> NodeOptions:
        """Return the node's sizes, with the longest payload that node and interface take."""
        from slackline.circuit import NodeOptions, mtu_of

        def read(name: str) -> int:
            return self._registers.read(name, self.patience)

        found = (read("identity"), read("version"))
        if found != (_IDENTITY, _VERSION):
            raise UsageError(
                f"the node behind {self._interface} has identity 0x{found[0]:08X} and version "
                f"{found[1]}, not 0x{_IDENTITY:08X} and {_VERSION}: its gateware is of another "
                "version of slackline"
            )
        built = NodeOptions(
            ports=read("ports"),
            lanes=read("lanes"),
            slots=read("slots"),
            payload_bytes=read("payload_bytes"),
        )
        mtu = mtu_of(self._interface)
        if mtu < HEADER_BYTES + built.payload_bytes:
            raise UsageError(
                f"{self._interface} has an MTU of {mtu} bytes, and the node's frames have up to "
                f"{HEADER_BYTES + built.payload_bytes}: raise the MTU, or build the node with "
                "shorter payloads"
            )
        return built


def _addresses() -> dict[str, int]:
    """Return the addresses of the registers that all nodes have, by name."""
    from slackline.circuit import NodeOptions, node_registers

    return {each.name: each.address for each in node_registers(NodeOptions(ports=16))}


def _of_job(frame: bytes, job: int) -> bytes:
    """Return the frame with another value in the header's field `job`."""
    header = decode(frame)
    return frame if header.job == job else encode(replace(header, job=job)) + frame[HEADER_BYTES:]


def _sum_of(parts: list[bytes]) -> bytes:
    """Return the payload of the sum of frames, added in rank order by software."""
    from slackline.circuit import ELEMENTS, reduce_in_rank_order

    dtype = decode(parts[0]).dtype
    assert dtype is not None, "frames of data have a type"
    return reduce_in_rank_order([part[HEADER_BYTES:] for part in parts], ELEMENTS[dtype])


class _WiredNode:
    """The node behind an interface, while it serves one group."""

    def __init__(self, nodes: EthernetNodes, workers: int, epoch: int) -> None:
        self._nodes, self._workers, self._epoch = nodes, workers, epoch
        self._headers = [nodes.header(port) for port in range(workers)]
        self._resent = self._restarts = self._doubled = 0
        self._hashes = (hashlib.sha256(), hashlib.sha256()) if nodes.hashed else None
        self._round_trip_s: float | None = None
        self._open(first=1)
        self._wire = nodes.open_wire()
        self._wire.setblocking(False)

    @property
    def remark(self) -> str:
        """The frames that were sent again, and the node's restarts, for the aggregator's log.

        With hashes of the sums, they end the remark.
        """
        said = f", {count(self._resent, 'frame')} sent again"
        said += f", {count(self._restarts, 'restart')} of the node" * bool(self._restarts)
        if self._hashes is None:
            return said
        node, software = (each.hexdigest()[:16] for each in self._hashes)
        return f"{said}, its sums have hash {node}, those of software {software}"

    def add(self, sets: list[list[bytes]]) -> list[bytes]:
        """Return the reduced frame of each set: see Node.add."""
        numbers = {decode(parts[0]).sequence: k for k, parts in enumerate(sets)}
        sums: list[bytes] = [b""] * len(sets)
        base = following = 0
        heard = asked = time.monotonic()
        begun = [0.0] * len(sets)
        turns, pause = 0, self._resend_s()
        while base < len(sets):
            while following < min(len(sets), base + self._nodes.options.slots):
                self._send(sets[following])
                begun[following] = time.monotonic()
                following += 1
            news = False
            for frame in self._frames(asked + pause - time.monotonic()):
                place = self._place(frame, numbers)
                if place is None or sums[place]:
                    self._doubled += place is not None
                    continue
                sums[place], news = frame, True
                if begun[place]:
                    self._measure(time.monotonic() - begun[place])
            while base < len(sets) and sums[base]:
                base += 1
            now = time.monotonic()
            if news:
                heard = asked = now
                turns, pause = 0, self._resend_s()
            elif now >= asked + pause:
                turns += 1
                if turns >= _SILENT_TURNS and self._restarted(decode(sets[base][0]).sequence):
                    heard, turns = now, 0
                    # The node awaits every frame from `base` on, also those whose sums are here.
                    sums[base:] = [b""] * (len(sets) - base)
                elif now - heard > self._nodes.patience.total_seconds():
                    raise InternalError(self._reason(now - heard))
                for place in range(base, following):
                    if not sums[place]:
                        self._send(sets[place])
                        # The sum of a frame that was sent twice tells no round trip.
                        self._resent, begun[place] = self._resent + self._workers, 0.0
                asked, pause = time.monotonic(), min(2 * pause, _MOST_RESEND_S)
        check_sums(sets, sums, dict)
        if self._hashes is not None:
            for parts, found in zip(sets, sums, strict=True):
                self._hashes[0].update(found[HEADER_BYTES:])
                self._hashes[1].update(_sum_of(parts))
        return [_of_job(each, _NO_JOB) for each in sums]

    def close(self) -> None:
        """Leave the node closed, if it answers, and let another group use it."""
        try:
            if self._nodes.registers.read("epoch", _ASKING) == self._epoch:
                self._nodes.registers.write("control", 0, _ASKING)
        except NodeSilentError as error:
            _log.debug("the node was not closed: %s", error)
        finally:
            self._wire.close()
            self._nodes.free()

    def _open(self, first: int) -> None:
        """Open the node for the group, from the frame number `first` on."""
        ports = self._nodes.options.ports
        settings = {
            "control": 0,
            "job": self._restarts,
            "epoch": self._epoch,
            "source": _SOURCE,
            "threshold": 1,
            "absent": (1 << ports) - (1 << self._workers),
            "first": first,
        }
        for name, value in {**settings, "control ": 1}.items():
            self._nodes.registers.write(name.strip(), value, self._nodes.patience)

    def _restarted(self, first: int) -> bool:
        """Return whether the node was restarted; if so, it is open again from `first` on.

        Raises InternalError if another group has taken the node.
        """
        registers = self._nodes.registers
        try:
            control, epoch = (registers.read(name, _ASKING) for name in ("control", "epoch"))
            if control & 1 and epoch == self._epoch:
                return False
            if control & 1:
                raise InternalError("another group has taken the node")
            self._restarts += 1
            self._open(first)
        except NodeSilentError:
            return False
        _log.warning("the node was restarted, and goes on at frame %d", first)
        return True

    def _reason(self, silence_s: float) -> str:
        """Return why no sum comes: the node is gone, or a port's counters tell."""
        said = f"the node has given no sum for {silence_s:.1f} s"
        names = ("malformed", "foreign", "unordered", "awaited", "untaken", "overruns")
        try:
            counters = {
                f"port {port}: {name}": self._nodes.registers.read(f"port{port}_{name}", _ASKING)
                for port in range(self._workers)
                for name in names
            }
        except NodeSilentError:
            return f"{said}, and does not answer for its registers"
        return f"{said}; its counters: " + ", ".join(f"{n} {c}" for n, c in counters.items() if c)

    def _send(self, parts: list[bytes]) -> None:
        for header, frame in zip(self._headers, parts, strict=True):
            packet = header + _of_job(frame, self._restarts)
            while True:
                try:
                    self._wire.send(packet)
                    break
                except BlockingIOError:
                    select.select([], [self._wire], [])
                except OSError as error:
                    raise InternalError(f"the node's interface failed: {error}") from error

    def _frames(self, patience_s: float) -> list[bytes]:
        """Return the frames that wait, or those that come first within `patience_s`."""
        found: list[bytes] = []
        select.select([self._wire], [], [], max(0.0, patience_s))
        while True:
            try:
                packet = self._wire.recv(_LONGEST_PACKET)
            except BlockingIOError:
                return found
            except OSError as error:
                raise InternalError(f"the node's interface failed: {error}") from error
            if self._nodes.port_of(packet) is not None:
                found.append(packet[_ETHERNET_BYTES:])

    def _place(self, frame: bytes, numbers: dict[int, int]) -> int | None:
        """Return which set a frame answers; None for a frame that answers none."""
        try:
            header = decode(frame)
        except SlacklineError:
            return None
        ours = (header.job, header.epoch, header.source) == (self._restarts, self._epoch, _SOURCE)
        whole = len(frame) - HEADER_BYTES == header.length
        return numbers.get(header.sequence) if ours and whole else None

    def _measure(self, seconds: float) -> None:
        """Take a round trip into the average, which decides when frames are sent again."""
        known = self._round_trip_s
        self._round_trip_s = seconds if known is None else known + (seconds - known) / 8

    def _resend_s(self) -> float:
        if self._round_trip_s is None:
            return _FIRST_RESEND_S
        return min(_MOST_RESEND_S, max(_LEAST_RESEND_S, _ROUND_TRIPS * self._round_trip_s))
