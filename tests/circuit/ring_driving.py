"""Drivers for tests of rings of NICs: every rank's tensors, and the sums that they must give."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from slackline.circuit import (
    ELEMENTS,
    RingDevice,
    RingOperation,
    RingOptions,
    RingPlace,
    Simulation,
    open_ring_device,
    rotated,
)
from slackline.plan.collective import Collective, generate
from slackline.testing.reference import Array, execute, numpy_dtype, reduce_arrays
from slackline.wire import HEADER_BYTES, DType, ReduceOp, decode, encode

JOB, EPOCH, PLAN = 7, 3, 4
DTYPES = list(ELEMENTS)


def tensor(rng: np.random.Generator, dtype: DType, count: int) -> Array:
    """Return random numbers of many sizes, with zeros, subnormals, +infinity, but no NaN."""
    if dtype is DType.INT32:
        return rng.integers(-(1 << 31), 1 << 31, count, np.int32)
    values = (rng.standard_normal(count) * 10.0 ** rng.integers(-6, 5, count)).astype(np.float32)
    values[rng.random(count) < 0.05] = -0.0
    values[rng.random(count) < 0.02] = np.inf
    if dtype is DType.BFLOAT16:
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(numpy_dtype(dtype))


@dataclass
class Tensors:
    """An operation on all ranks: the contributions, the targets and the wanted sum."""

    tag: int
    dtype: DType
    frame_bytes: int
    sources: list[Array]
    rotates: bool = False
    """The tensor is summed in chunks that start at different ranks, as in the plan ring."""
    start: int = 0
    """The rank that starts the operation, if the tensor does not rotate."""
    targets: list[Array] = field(init=False)
    wanted: Array = field(init=False)

    def __post_init__(self) -> None:
        with np.errstate(all="ignore"):
            self.wanted = self._sum()
        # On every other rank the sum overwrites the rank's own contribution.
        self.targets = [
            source if rank % 2 else np.zeros_like(source)
            for rank, source in enumerate(self.sources)
        ]

    def _sum(self) -> Array:
        if not self.rotates:
            turned = [*self.sources[self.start :], *self.sources[: self.start]]
            return reduce_arrays(turned, ReduceOp.SUM, self.dtype)
        plan = generate(Collective.ALL_REDUCE, "ring", len(self.sources))
        inputs = [(source,) for source in self.sources]
        # Partials of 16-bit types travel as fp32; with `order="rank"` the reference does the same.
        return execute(plan, inputs, ReduceOp.SUM, self.dtype, order="rank")[0][0]

    def operations(self, rank: int) -> tuple[RingOperation, ...]:
        """Return the operations that this rank posts."""
        if self.rotates:
            return rotated(self.operation(rank), len(self.sources))
        return (replace(self.operation(rank), start=self.start),)

    @property
    def keys(self) -> list[tuple[int, int]]:
        """Tag and chunk of each of its operations."""
        return [each.key for each in self.operations(0)]

    def operation(self, rank: int) -> RingOperation:
        """Return the whole tensor at this rank as one operation that starts at rank 0."""
        return RingOperation(
            tag=self.tag,
            dtype=self.dtype,
            total=self.sources[rank].nbytes,
            frame_bytes=self.frame_bytes,
            source=self.sources[rank].ctypes.data,
            target=self.targets[rank].ctypes.data,
        )


def longest_frame(options: RingOptions, dtype: DType) -> int:
    """Return the most bytes of an operation that fit into one frame."""
    return options.payload_bytes * dtype.itemsize // max(4, dtype.itemsize)


def tensors(
    rng: np.random.Generator,
    options: RingOptions,
    ranks: int,
    dtype: DType,
    count: int,
    tag: int,
    **how: Any,
) -> Tensors:
    """Return random tensors, cut into frames of half or all of the longest payload.

    `how` gives further fields of Tensors.
    """
    frame = longest_frame(options, dtype)
    if frame >= 128 and rng.random() < 0.5:
        frame //= 2
    return Tensors(tag, dtype, frame, [tensor(rng, dtype, count) for _ in range(ranks)], **how)


def counts(rng: np.random.Generator, options: RingOptions, dtype: DType) -> list[int]:
    """Return numbers of elements: 1, about one frame, several frames, and an odd rest."""
    whole = longest_frame(options, dtype) // dtype.itemsize
    return [1, 3, whole - 1, whole, whole + 1, 3 * whole, int(rng.integers(2, 5 * whole))]


class Ring:
    """A ring of devices that hand frames to each other directly, without a network."""

    def __init__(
        self,
        kinds: Sequence[str],
        options: RingOptions,
        simulate: Callable[[], Simulation] | None = None,
    ) -> None:
        """Open a device of each kind; `simulate`, if given, opens the simulations of circuits."""
        self.options = options
        self.devices: list[RingDevice] = []
        for rank in range(len(kinds)):
            where = {"rank": rank, "ranks": len(kinds), "job": JOB, "epoch": EPOCH, "plan_id": PLAN}
            if kinds[rank] == "circuit" and simulate is not None:
                from slackline.circuit import RingCircuit

                device = RingCircuit(options, RingPlace(**where), simulation=simulate())
            else:
                device = open_ring_device(kinds[rank], options, **where)
            self.devices.append(device)
        self.sent: list[list[bytes]] = [[] for _ in kinds]
        self.done: list[list[tuple[int, int]]] = [[] for _ in kinds]

    def post(self, operations: Sequence[Tensors], rng: np.random.Generator) -> None:
        """Post operations on every rank, each in an order of its own.

        Rank 0 is the last one, because it sends at once.
        """
        for rank in reversed(range(len(self.devices))):
            for k in rng.permutation(len(operations)):
                for each in operations[k].operations(rank):
                    self.devices[rank].post(each)

    def close(self) -> None:
        for device in self.devices:
            device.close()

    def turn(self, rank: int, order: np.random.Generator | None = None) -> int:
        """Let one device work and hand on its frames, in the order asked; return their number."""
        device = self.devices[rank]
        device.advance()
        found = device.frames()
        self.sent[rank] += found
        self.done[rank] += device.completed()
        handed = list(found)
        if order is not None:
            order.shuffle(handed)  # type: ignore[arg-type]
        for frame in handed:
            self.devices[(rank + 1) % len(self.devices)].receive(frame)
        return len(found)

    def settle(self, order: np.random.Generator | None = None) -> None:
        """Let the devices work until none has a frame for another."""
        ranks = range(len(self.devices))
        while sum(self.turn(rank, order) for rank in ranks):
            pass

    def differences(self, operations: Sequence[Tensors]) -> str:
        """Return the first error in memory and in completions: see `differences`."""
        return differences(operations, self.done)


def differences(operations: Sequence[Tensors], done: Sequence[Sequence[tuple[int, int]]]) -> str:
    """Return the first error in the ranks' memory and completions, or an empty string."""
    keys = sorted(key for each in operations for key in each.keys)
    for rank, completed in enumerate(done):
        if sorted(completed) != keys:
            return f"rank {rank} completed {sorted(completed)}, not {keys}"
    for each in operations:
        for rank, target in enumerate(each.targets):
            if target.tobytes() != each.wanted.tobytes():
                return f"rank {rank} has another sum of {each.dtype.name} 0x{each.tag:X}"
    return ""


def unnumbered(frames: list[bytes]) -> Counter[bytes]:
    """Return the frames without numbers, since the order of two operations' frames may differ."""
    return Counter(
        encode(replace(decode(frame), sequence=0)) + frame[HEADER_BYTES:] for frame in frames
    )


def agree(ring: Ring, twins: Ring, operations: Sequence[Tensors], rng: np.random.Generator) -> None:
    """Let both rings sum these operations, and check that all sums equal the reference."""
    again = [replace(each, sources=[part.copy() for part in each.sources]) for each in operations]
    for each, posted in ((ring, operations), (twins, again)):
        each.post(posted, rng)
        each.settle(rng)
        assert each.differences(posted) == ""
        each.done = [[] for _ in each.done]


def sent_alike(ring: Ring, twins: Ring) -> None:
    """Check that all ranks of both rings have sent the same frames and counted the same events."""
    for sent, wanted in zip(ring.sent, twins.sent, strict=True):
        assert unnumbered(sent) == unnumbered(wanted)
    for device, twin in zip(ring.devices, twins.devices, strict=True):
        counters = device.counters()
        assert {name: counters[name] for name in twin.counters()} == twin.counters()
