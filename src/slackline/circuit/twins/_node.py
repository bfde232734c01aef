"""The aggregation node's twin: a Python model with the same frames and events, without timing."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slackline.circuit.options import ELEMENTS, NodeOptions
from slackline.circuit.registers import RESETTING
from slackline.circuit.twins._lanes import reduce_in_rank_order
from slackline.circuit.twins._stage import port_stage
from slackline.errors import FrameError
from slackline.wire import (
    FIRST_SEQUENCE,
    HEADER_BYTES,
    Collective,
    FrameKind,
    Header,
    ReduceOp,
    decode,
    encode,
    next_sequence,
    sequences_behind,
)

__all__ = ["NodeTwin"]


@dataclass(kw_only=True)
class NodeTwin:
    """A model of AggregationNode without cycles: the same frames and events, in the same order.

    The order among the frames of one port matters; the order between different ports does not.
    """

    options: NodeOptions
    job: int = 0
    epoch: int = 0
    source: int = 0xFFFF
    absent: int = 0
    """A bit for each port that takes part in no sum."""
    first: int = FIRST_SEQUENCE
    """The sequence number of each rank's first frame. An assignment to `job`, `epoch`, `absent` or
    `first` empties the buffers and starts the sequence numbers anew."""
    events: list[dict[str, int]] = field(init=False)
    """The event counters of each port, by name."""
    mismatched: int = field(init=False, default=0)
    resent: list[tuple[int, bytes]] = field(init=False, default_factory=list)
    """Sums that were sent again, each to the port of the rank that sent its contribution again."""

    def __post_init__(self) -> None:
        self.events = [
            dict.fromkeys(("accepted", "malformed", "foreign", "repeated", "unordered"), 0)
            for _ in range(self.options.ports)
        ]
        self._restart()

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name in RESETTING and hasattr(self, "events"):
            self._restart()

    def _restart(self) -> None:
        """Empty the buffers, and expect the first sequence number at every port."""
        ports = self.options.ports
        self._expected = [self.first] * ports
        self._sums: dict[int, bytes] = {}
        self._kept: list[deque[tuple[Header, bytes]]] = [deque() for _ in range(ports)]
        self._present = [port for port in range(ports) if not self.absent >> port & 1]

    def receive(self, port: int, frame: bytes, *, bad: bool = False) -> list[bytes]:
        """Take one frame from rank `port`; return the reduced frames that it completes.

        Frames that do not agree are completed by an ABORT without a payload, in place of their sum.
        A frame that came before completes none; if its sum is still kept, `resent` gets the sum.
        """
        frame, bad = port_stage(frame, bad)
        event, header = self._judge(port, frame, bad)
        self.events[port][event] += 1
        if header is None:
            return []
        if event == "repeated":
            if header.sequence in self._sums:
                self.resent.append((port, self._sums[header.sequence]))
            return []
        self._expected[port] = next_sequence(self._expected[port])
        self._kept[port].append((header, frame[HEADER_BYTES:]))
        if not all(self._kept[each] for each in self._present):
            return []
        heads = [self._kept[each].popleft() for each in self._present]
        first = heads[0][0]
        answer = replace(
            first,
            source=self.source & 0xFFFF,
            acknowledge=next_sequence(first.sequence),
            payload_checksum=0,
        )
        if any(_agreed(each) != _agreed(first) for each, _ in heads):
            self.mismatched += 1
            made = encode(replace(answer, kind=FrameKind.ABORT, length=0))
        else:
            assert first.dtype is not None
            parts = [part for _, part in heads]
            made = encode(answer) + reduce_in_rank_order(parts, ELEMENTS[first.dtype])
        self._sums[first.sequence] = made
        if len(self._sums) > self.options.slots:
            del self._sums[next(iter(self._sums))]
        return [made]

    def _judge(self, port: int, frame: bytes, bad: bool) -> tuple[str, Header | None]:
        try:
            header = decode(frame)
        except FrameError:
            return "malformed", None
        if bad or len(frame) <= HEADER_BYTES or len(frame) - HEADER_BYTES != header.length:
            return "malformed", None
        ours = (header.job, header.epoch, header.source) == (self.job, self.epoch, port)
        if not ours or port not in self._present:
            return "foreign", None
        if not self._reducible(header):
            return "malformed", None
        behind = sequences_behind(header.sequence, self._expected[port])
        if not header.sequence or behind > self.options.slots:
            return "unordered", None
        if behind:
            return "repeated", header
        return "accepted", header

    def _reducible(self, header: Header) -> bool:
        dtype = header.dtype
        return (
            header.kind is FrameKind.DATA
            and (header.collective, header.reduce_op) == (Collective.ALL_REDUCE, ReduceOp.SUM)
            and dtype in ELEMENTS
            and not header.flags
            and header.chunk == 0
            and 0 < header.length <= self.options.payload_bytes
            and header.length % dtype.itemsize == 0
            and header.offset + header.length <= header.total
        )


def _agreed(header: Header) -> Mapping[str, object]:
    same = ("dtype", "tag", "sequence", "offset", "total", "length", "plan_id")
    return {name: getattr(header, name) for name in same}
