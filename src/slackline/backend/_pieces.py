"""Operations on long tensors of a device, in pieces through a ring of blocks of host memory.

    device to host   ─copy 0─┼─copy 1─┼─copy 2─┼─ ...          copies and transfers overlap
    nic                      ├─ all_reduce 0 ─┼─ all_reduce 1 ─┼─ ...
    host to device                            ├─copy 0─┼─ ...

A block is used again when its piece has been copied back to the device. So a tensor of any length
needs only the host memory of the ring. The time of the operation is that of the slowest of the
three stages, not their sum (the asynchronous pipeline of workers in NTT's in-network computing,
2019).
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from slackline.backend._transfers import Several, Then
from slackline.nic import Transfer

__all__ = ["PIECE_BYTES", "BlockRing", "Copies", "Piece", "Ready", "pieces_of"]

PIECE_BYTES = 4 << 20
"""The bytes of a piece: enough for copies and network transfers at full rate."""
_BLOCKS = 8


class Ready(Protocol):
    """The event of a copy's end, such as a CUDA event."""

    def synchronize(self) -> None:
        """Block, without the GIL, until the copy is done."""


class Copies(Protocol):
    """The asynchronous copies of one operation between host and device, callable on any thread."""

    def to_host(self, host: torch.Tensor, device: torch.Tensor) -> Ready:
        """Queue a copy of the tensor `device` to the tensor `host`; do not wait."""

    def to_device(self, device: torch.Tensor, host: torch.Tensor) -> Ready:
        """Queue a copy of the tensor `host` to the tensor `device`; do not wait."""


class Piece(NamedTuple):
    """A part of a flat tensor on a device, as the source and the target of an operation."""

    source: torch.Tensor
    target: torch.Tensor


class _Block:
    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.free = threading.Event()
        self.free.set()
        self.back: Ready | None = None
        """The block's latest copy to the device, which may still run, or None."""

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the first bytes of the memory block as a tensor like the given flat one."""
        return self.memory[: tensor.nbytes].view(tensor.dtype)


class BlockRing:
    """A ring of blocks of host memory, used in turn by the operations of one thread.

    `allocate(bytes)` allocates the memory of a block when the block is first needed.
    """

    def __init__(
        self,
        allocate: Callable[[int], torch.Tensor],
        *,
        piece_bytes: int = PIECE_BYTES,
        blocks: int = _BLOCKS,
    ) -> None:
        self.piece_bytes = piece_bytes
        self._allocate = allocate
        self._blocks: deque[_Block] = deque()
        """All blocks, with the least recently used one first."""
        self._most = blocks

    def pass_through(
        self,
        pieces: Sequence[Piece],
        copies: Copies,
        post: Callable[[torch.Tensor], Transfer],
    ) -> Transfer:
        """Post the transfers of all pieces, in order; return one Transfer of them all.

        `post` starts the transfer of a piece that lies in host memory. The call blocks until the
        last piece is posted. The Transfer is done when the copies of all results to the device are
        queued.
        """
        transfers: list[Transfer] = []
        copied: deque[tuple[_Block, torch.Tensor, Piece, Ready]] = deque()

        def post_oldest() -> None:
            block, host, piece, ready = copied.popleft()
            ready.synchronize()
            transfers.append(_follow(block, post(host), copies, piece, host))

        try:
            for piece in pieces:
                while (block := self._take(wait=not copied)) is None:
                    post_oldest()
                host = block.like(piece.source)
                copied.append((block, host, piece, copies.to_host(host, piece.source)))
            while copied:
                post_oldest()
        except BaseException:
            # Posted transfers end by themselves and keep their blocks. Copies to the other blocks
            # may still run. So the ring drops all blocks, and later operations allocate new ones.
            self._blocks.clear()
            raise
        return Several(transfers)

    def _take(self, *, wait: bool) -> _Block | None:
        """Return the ring's next memory block; None if it is in use and `wait` is false."""
        if len(self._blocks) < self._most and not (self._blocks and self._blocks[0].free.is_set()):
            block = _Block(self._allocate(self.piece_bytes))
        else:
            block = self._blocks[0]
            if not block.free.is_set() and not wait:
                return None
            block.free.wait()  # This wait ends, since every transfer has a timeout.
            self._blocks.popleft()
        if block.back is not None:
            block.back.synchronize()
        block.back = None
        block.free.clear()
        self._blocks.append(block)
        return block


def pieces_of(source: torch.Tensor, target: torch.Tensor, piece_bytes: int) -> list[Piece]:
    """Cut two flat tensors of the same type and length into pieces of at most `piece_bytes`."""
    count = piece_bytes // source.element_size()
    return [
        Piece(source[start : start + count], target[start : start + count])
        for start in range(0, source.numel(), count)
    ]


def _follow(
    block: _Block, transfer: Transfer, copies: Copies, piece: Piece, host: torch.Tensor
) -> Transfer:
    """Return a Transfer that queues the copy of a result to the device after `transfer`.

    The memory block is then free for another piece, also after an error.
    """

    def land() -> None:
        block.back = copies.to_device(piece.target, host)

    landed = Then(transfer, land)
    landed.add_done_callback(lambda error: block.free.set())
    return landed
