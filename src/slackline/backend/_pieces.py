"""Long tensors of a device in pieces, through a ring of blocks of host memory.

    device to host   ─copy 0─┼─copy 1─┼─copy 2─┼─ ...        copies and transfers are under way
    nic                      ├─ all_reduce 0 ─┼─ all_reduce 1 ─┼─ ...       at the same time
    host to device                            ├─copy 0─┼─ ...

A block takes the next piece when its last one is back on the device. So a tensor of any length
needs the host memory of the ring only, and its time is that of the slowest of the three stages, not
their sum (the asynchronous pipeline of workers in NTT's in-network computing, 2019).
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
"""Long enough for a device's copies and a network's transfers to be at full rate."""
_BLOCKS = 8


class Ready(Protocol):
    """What tells that a copy is done: a CUDA event."""

    def synchronize(self) -> None:
        """Block, without the GIL, until that is so."""


class Copies(Protocol):
    """Copies of one operation, queued and not waited for; on any thread."""

    def to_host(self, host: torch.Tensor, device: torch.Tensor) -> Ready:
        """Queue a copy of what the device has computed."""

    def to_device(self, device: torch.Tensor, host: torch.Tensor) -> Ready:
        """Queue a copy of what has arrived."""


class Piece(NamedTuple):
    """A part of a tensor, flat: where it is read, and where the result goes."""

    source: torch.Tensor
    target: torch.Tensor


class _Block:
    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.free = threading.Event()
        self.free.set()
        self.back: Ready | None = None
        """Its last copy to the device, which may be under way."""

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Its first bytes as a tensor of this type and length."""
        return self.memory[: tensor.nbytes].view(tensor.dtype)


class BlockRing:
    """Blocks of host memory, used in turn by the operations of one thread.

    `allocate(bytes)` gives the memory of a block, when it is first needed.
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
        """Those in use and those that were: the oldest first."""
        self._most = blocks

    def pass_through(
        self,
        pieces: Sequence[Piece],
        copies: Copies,
        post: Callable[[torch.Tensor], Transfer],
    ) -> Transfer:
        """Post every piece, in order; `post` begins the transfer of one in its block.

        Returns when the last one is posted. The transfer is done when all results are on their way
        to the device.
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
            # What is posted ends by itself, and keeps its block. Copies may be under way to the
            # others, so nothing else gets their memory.
            self._blocks.clear()
            raise
        return Several(transfers)

    def _take(self, *, wait: bool) -> _Block | None:
        """The next block; None if it is not free and need not be waited for."""
        if len(self._blocks) < self._most and not (self._blocks and self._blocks[0].free.is_set()):
            block = _Block(self._allocate(self.piece_bytes))
        else:
            block = self._blocks[0]
            if not block.free.is_set() and not wait:
                return None
            block.free.wait()  # ends: every transfer has a timeout
            self._blocks.popleft()
        if block.back is not None:
            block.back.synchronize()
        block.back = None
        block.free.clear()
        self._blocks.append(block)
        return block


def pieces_of(source: torch.Tensor, target: torch.Tensor, piece_bytes: int) -> list[Piece]:
    """Cut two flat tensors of one type and length; all pieces but the last have `piece_bytes`."""
    count = piece_bytes // source.element_size()
    return [
        Piece(source[start : start + count], target[start : start + count])
        for start in range(0, source.numel(), count)
    ]


def _follow(
    block: _Block, transfer: Transfer, copies: Copies, piece: Piece, host: torch.Tensor
) -> Transfer:
    """The transfer, and after it the copy back; then the block is free."""

    def land() -> None:
        block.back = copies.to_device(piece.target, host)

    landed = Then(transfer, land)
    landed.add_done_callback(lambda error: block.free.set())
    return landed
