"""The aggregation node's twin: a Python model with the same frames and events, without timing."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slackline.circuit.options import ELEMENTS, NodeOptions
from slackline.circuit.twins._lanes import reduce_in_rank_order
from slackline.errors import FrameError
from slackline.wire import (
    HEADER_BYTES,
    Collective,
    FrameKind,
    Header,
    ReduceOp,
    decode,
    encode,
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
    events: list[dict[str, int]] = field(init=False)
    """The event counters of each port, by name."""
    mismatched: int = field(init=False, default=0)
    resent: list[bytes] = field(init=False, default_factory=list)
    """Sums that were sent again because a rank sent its contribution again."""

    def __post_init__(self) -> None:
        ports = self.options.ports
        self.events = [
            dict.fromkeys(("accepted", "malformed", "foreign", "repeated", "unordered"), 0)
            for _ in range(ports)
        ]
        self._expected = [1] * ports
        self._sums: dict[int, bytes] = {}
        self._kept: list[deque[tuple[Header, bytes]]] = [deque() for _ in range(ports)]

    def receive(self, port: int, frame: bytes, *, bad: bool = False) -> list[bytes]:
        """Take one frame from rank `port`; return the reduced frames that it completes.

        A frame that came before completes none; if its sum is still kept, `resent` gets the sum.
        """
        event, header = self._judge(port, frame, bad)
        self.events[port][event] += 1
        if header is None:
            return []
        if event == "repeated":
            if header.sequence in self._sums:
                self.resent.append(self._sums[header.sequence])
            return []
        self._expected[port] = (self._expected[port] + 1) & 0xFFFFFFFF
        self._kept[port].append((header, frame[HEADER_BYTES : HEADER_BYTES + header.length]))
        if not all(self._kept):
            return []
        heads = [kept.popleft() for kept in self._kept]
        first = heads[0][0]
        if any(_agreed(each) != _agreed(first) for each, _ in heads):
            self.mismatched += 1
            return []
        assert first.dtype is not None
        payload = reduce_in_rank_order([part for _, part in heads], ELEMENTS[first.dtype])
        reduced = replace(
            first,
            source=self.source & 0xFFFF,
            acknowledge=(first.sequence + 1) & 0xFFFFFFFF,
            payload_checksum=0,
        )
        self._sums[first.sequence] = encode(reduced) + payload
        # A sum's slot is its number modulo `slots`, so this sum overwrites the sum whose number is
        # lower by `slots`.
        self._sums.pop((first.sequence - self.options.slots) & 0xFFFFFFFF, None)
        return [self._sums[first.sequence]]

    def _judge(self, port: int, frame: bytes, bad: bool) -> tuple[str, Header | None]:
        try:
            header = decode(frame)
        except FrameError:
            return "malformed", None
        beat = self.options.beat_bytes
        beats = -(-(len(frame) - HEADER_BYTES) // beat)
        if bad or len(frame) <= HEADER_BYTES or beats != -(-header.length // beat):
            return "malformed", None
        if (header.job, header.epoch, header.source) != (self.job, self.epoch, port):
            return "foreign", None
        if not self._reducible(header):
            return "malformed", None
        behind = (self._expected[port] - header.sequence) & 0xFFFFFFFF
        if 0 < behind <= self.options.slots and header.sequence:
            return "repeated", header
        if behind:
            return "unordered", None
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
