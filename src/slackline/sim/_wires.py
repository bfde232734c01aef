"""Frames on their way from host to host: ports in series, queues before them, and faults.

    queue of the host    NIC sends       switch       NIC of the target receives
    |------ wait ------|--- size/rate ---|- latency -|--- size/rate ---|- latency -| arrived

The switch forwards the head of a frame while the tail is still being sent, as far as the fabric's
`forwards_after_bytes` allows. A queue is ordered by priority, lower first, and then by time.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush

from slackline.sim._conditions import Conditions, Path
from slackline.sim._events import EventQueue
from slackline.sim._fabric import Fabric, transmission_ps

__all__ = ["Frame", "Wires"]


class Frame:
    """A payload on its way; `sent` is called when it has left its host, `arrived` at its end."""

    __slots__ = ("arrived", "packets", "payload_bytes", "priority", "sent", "source", "target")

    def __init__(
        self,
        source: int,
        target: int,
        payload_bytes: int,
        priority: int,
        sent: Callable[[], None],
        arrived: Callable[[], None],
    ) -> None:
        self.source, self.target = source, target
        self.payload_bytes, self.priority = payload_bytes, priority
        self.sent, self.arrived = sent, arrived
        self.packets = 0
        """The number of packets that have not arrived yet."""


class _Piece:
    """Packets of a frame that travel together: all of them, or those that are sent again."""

    __slots__ = ("again", "frame", "lost", "nic", "packets", "wire_bytes")

    def __init__(self, frame: Frame, packets: int, wire_bytes: int, *, again: bool) -> None:
        self.frame, self.packets, self.wire_bytes = frame, packets, wire_bytes
        self.again = again
        self.nic = 0
        self.lost = False
        """Whether the path went down while the piece was under way."""

    @property
    def path(self) -> Path:
        return self.frame.source, self.frame.target, self.nic


class Wires:
    """The ports and queues of all hosts while a simulation runs."""

    def __init__(self, events: EventQueue, fabric: Fabric, conditions: Conditions) -> None:
        self._events, self._fabric, self._conditions = events, fabric, conditions
        hosts = range(len(fabric.hosts))
        self._queues: list[list[tuple[int, int, _Piece]]] = [[] for _ in hosts]
        self._idle = [self._by_rate(host, range(fabric.nics)) for host in hosts]
        self._receives_until_ps = {(host, nic): 0 for host in hosts for nic in range(fabric.nics)}
        self._limited_until_ps: dict[Path, int] = {}
        self._memory_until_ps = [0 for _ in hosts]
        self._queued = 0
        self._under_way: dict[Path, list[_Piece]] = {}
        self.sent_bytes = [0 for _ in hosts]
        """The bytes that each host has put on its wires, resent ones and overhead included."""
        self.received_bytes = [0 for _ in hosts]
        """The bytes that each host has taken from its wires."""
        self.frames = 0
        """The number of frames that have been handed to `send`."""
        self.resent_packets = 0
        """The number of packets that were lost and sent again."""
        conditions.changed.append(self._changed)

    def send(self, frame: Frame) -> None:
        """Queue a frame at its host."""
        self.frames += 1
        if frame.source == frame.target:
            self._copy(frame)
            return
        framing = self._fabric.framing
        frame.packets = framing.packets(frame.payload_bytes)
        piece = _Piece(frame, frame.packets, framing.wire_bytes(frame.payload_bytes), again=False)
        self._queue(piece, frame.priority)

    def waiting(self) -> Iterator[Path]:
        """Yield the path of every frame that still waits in a queue, with NIC 0 for all NICs."""
        for queue in self._queues:
            for _, _, piece in queue:
                yield piece.frame.source, piece.frame.target, 0

    def _by_rate(self, host: int, nics: Iterable[int]) -> list[int]:
        """Return the NICs, the fastest first: a frame takes the first one that is idle."""
        rates = self._fabric.hosts[host].rates_bps
        return sorted(nics, key=lambda nic: (-rates[nic], nic))

    def _copy(self, frame: Frame) -> None:
        """Move a message between two ranks of one host through memory."""
        host, now_ps = self._fabric.hosts[frame.source], self._events.now_ps
        start_ps = max(now_ps, self._memory_until_ps[frame.source])
        if host.memory_bytes_per_second is not None:
            start_ps += transmission_ps(frame.payload_bytes, 8 * host.memory_bytes_per_second)
        self._memory_until_ps[frame.source] = start_ps
        self._events.at(start_ps, frame.sent)
        self._events.at(start_ps + host.memory_latency_ps, frame.arrived)

    def _queue(self, piece: _Piece, priority: int) -> None:
        host = piece.frame.source
        self._queued += 1
        heappush(self._queues[host], (priority, self._queued, piece))
        if self._idle[host]:
            self._start(host)

    def _start(self, host: int) -> None:
        """Let each idle NIC of the host send the first piece whose path is up."""
        queue = self._queues[host]
        for nic in tuple(self._idle[host]):
            blocked = []
            while queue:
                entry = heappop(queue)
                piece = entry[2]
                if self._conditions.down((host, piece.frame.target, nic)):
                    blocked.append(entry)
                    continue
                self._idle[host].remove(nic)
                piece.nic = nic
                self._transmit(piece)
                break
            for entry in blocked:
                heappush(queue, entry)

    def _transmit(self, piece: _Piece) -> None:
        host, fabric, now_ps = piece.frame.source, self._fabric, self._events.now_ps
        rate_bps = self._conditions.rate_bps(host, piece.nic)
        cable_ps = fabric.hosts[host].latency_ps
        end_ps = now_ps + transmission_ps(piece.wire_bytes, rate_bps)
        self.sent_bytes[host] += piece.wire_bytes
        if self._conditions.faulty:
            self._under_way.setdefault(piece.path, []).append(piece)
        head_ps = now_ps + transmission_ps(self._head_bytes(piece), rate_bps) + cable_ps
        self._events.at(end_ps, self._left, piece)
        self._events.at(head_ps, self._at_switch, piece, end_ps + cable_ps)

    def _left(self, piece: _Piece) -> None:
        host = piece.frame.source
        self._idle[host] = self._by_rate(host, (*self._idle[host], piece.nic))
        if not piece.again:
            piece.frame.sent()
        if self._queues[host]:
            self._start(host)

    def _at_switch(self, piece: _Piece, tail_ps: int) -> None:
        """Apply what the path does to packets, then pass the piece to the target's port."""
        if not self._conditions.faulty:
            self._at_port(piece, tail_ps)
            return
        if piece.lost:
            return
        now_ps, path = self._events.now_ps, piece.path
        lot = self._conditions.draw(path, piece.packets)
        if lot.lost:
            self._lose(piece, lot.lost, tail_ps)
            if not piece.packets:
                return
        late_ps = lot.late_ps
        if lot.rate_bps is not None:
            start_ps = max(now_ps, self._limited_until_ps.get(path, 0))
            end_ps = max(start_ps + transmission_ps(piece.wire_bytes, lot.rate_bps), tail_ps)
            self._limited_until_ps[path] = end_ps
            late_ps += end_ps - tail_ps
        head_ps = self._conditions.in_order(path, now_ps + late_ps)
        head_ps += lot.overtaken_ps
        self._events.at(head_ps, self._at_port, piece, tail_ps + head_ps - now_ps, lot.doubled)

    def _at_port(self, piece: _Piece, tail_ps: int, doubled: int = 0) -> None:
        """Receive the piece, of which `doubled` packets come twice, at the target's port."""
        if piece.lost:
            return
        target = piece.frame.target
        rate_bps = self._conditions.rate_bps(target, piece.nic)
        nbytes = piece.wire_bytes
        if doubled:
            nbytes += -(-piece.wire_bytes * doubled // piece.packets)
        port = (target, piece.nic)
        start_ps = max(self._events.now_ps, self._receives_until_ps[port])
        # A port that is faster than the sender has gaps, in which other frames are received.
        self._receives_until_ps[port] = start_ps + transmission_ps(nbytes, rate_bps)
        end_ps = max(
            self._receives_until_ps[port],
            tail_ps + transmission_ps(self._head_bytes(piece), rate_bps),
        )
        self.received_bytes[target] += nbytes
        self._events.at(end_ps + self._fabric.hosts[target].latency_ps, self._arrived, piece)

    def _arrived(self, piece: _Piece) -> None:
        if piece.lost:
            return
        if self._conditions.faulty:
            self._under_way[piece.path].remove(piece)
        frame = piece.frame
        frame.packets -= piece.packets
        if not frame.packets:
            frame.arrived()

    def _lose(self, piece: _Piece, lost: int, tail_ps: int) -> None:
        """Take `lost` packets out of a piece; the source sends them again a round trip later."""
        frame = piece.frame
        nbytes = -(-piece.wire_bytes * lost // piece.packets)
        piece.packets -= lost
        piece.wire_bytes -= nbytes
        if not piece.packets:
            self._under_way[piece.path].remove(piece)
        # From the switch, to which `tail_ps` refers, to the target and back to the source.
        trip_ps = self._fabric.hosts[frame.target].latency_ps
        trip_ps += self._fabric.latency_ps(frame.target, frame.source)
        trip_ps += self._conditions.delay_ps(piece.path)
        trip_ps += self._conditions.delay_ps((frame.target, frame.source, piece.nic))
        self.resent_packets += lost
        again = _Piece(frame, lost, nbytes, again=True)
        self._events.at(tail_ps + trip_ps, self._queue, again, frame.priority)

    def _changed(self) -> None:
        """Lose what was under way on paths that went down, and use paths that came back."""
        for path, pieces in self._under_way.items():
            if not self._conditions.down(path):
                continue
            for piece in pieces:
                piece.lost = True
                self.resent_packets += piece.packets
                again = _Piece(piece.frame, piece.packets, piece.wire_bytes, again=True)
                resend_ps = self._events.now_ps + self._fabric.resend_ps
                self._events.at(resend_ps, self._queue, again, piece.frame.priority)
            pieces.clear()
        for host, queue in enumerate(self._queues):
            if queue and self._idle[host]:
                self._start(host)

    def _head_bytes(self, piece: _Piece) -> int:
        """Return the bytes of a piece that the switch receives before it forwards the piece."""
        least = self._fabric.forwards_after_bytes
        return piece.wire_bytes if least is None else min(least, piece.wire_bytes)
