"""Operations on long tensors of a device, cut into pieces that pass through a ring of host memory.

    device to host   ─copy 0─┼─copy 1─┼─copy 2─┼─ ...          copies and transfers overlap
    nic                      ├─ operation 0 ──┼─ operation 1 ──┼─ ...
    host to device                            ├─copy 0─┼─ ...

A piece of an all_gather or a reduce_scatter is a part of each rank's share: rows on the device, and
a row of host memory for each rank.

A block is used again when its piece has been copied back to the device. So a tensor of any length
needs only the host memory of the ring. The operation takes the time of the slowest of the three
stages, not the sum of all three (the asynchronous pipeline of workers in NTT's in-network
computing, 2019).
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import torch

from slackline.backend.staging._buffers import PIECE_BYTES
from slackline.backend.staging._device import Copies, Device, Event
from slackline.backend.staging._landing import Landing
from slackline.backend.staging._transfers import AllOf
from slackline.nic import Transfer

__all__ = ["BlockRing", "Piece", "gathered_pieces", "pieces_of", "scattered_pieces"]

_BLOCKS = 64
"""The blocks of host memory that a ring has at most.

A long operation waits for a block only if all are in use, and with it wait the operations after it.
"""


class Piece(NamedTuple):
    """A part of an operation on a device: flat tensors of one length, and their places in a block.

    They lie in the block's host memory as rows.
    """

    sources: Sequence[torch.Tensor]
    targets: Sequence[torch.Tensor]
    rows: int = 1
    """The number of rows in host memory."""
    source_row: int = 0
    """The row of the first source."""
    target_row: int = 0
    """The row of the first target."""


class _Block:
    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.free = threading.Event()
        self.free.set()
        self.landing: Landing | None = None
        """The block's latest copy to the device, which may still run, or None."""

    def hold(self, piece: Piece) -> torch.Tensor:
        """Return the block's first bytes as the rows of a piece."""
        first = piece.sources[0]
        return self.memory[: piece.rows * first.nbytes].view(first.dtype).view(piece.rows, -1)


class BlockRing:
    """A ring of blocks of host memory, used in turn by the operations of one thread."""

    def __init__(self, *, piece_bytes: int = PIECE_BYTES, blocks: int = _BLOCKS) -> None:
        """Create a ring of at most `blocks` blocks; each is allocated when it is first needed."""
        self.piece_bytes = piece_bytes
        self._blocks: deque[_Block] = deque()
        """All blocks, with the least recently used one first."""
        self._most = blocks

    def pass_through(
        self,
        device: Device,
        copies: Copies,
        pieces: Sequence[Piece],
        post: Callable[[torch.Tensor], Transfer],
        landings: list[Landing],
    ) -> Transfer:
        """Post the transfers of all pieces, in order; return one Transfer for all pieces.

        `post` starts the transfer of a piece whose rows lie in host memory, in one flat tensor. The
        call blocks until the last piece is posted. The copies of the results to the device are
        appended to `landings`, and launched when the pieces' transfers end.
        """
        transfers: list[Transfer] = []
        copied: deque[tuple[_Block, torch.Tensor, Piece, Event]] = deque()

        def post_oldest() -> None:
            block, host, piece, ready = copied.popleft()
            ready.synchronize()
            transfer = post(host.view(-1))
            transfers.append(transfer)
            landings.append(_land(device, copies, block, piece, host, transfer))
            transfer.add_done_callback(partial(_end, device, block, landings[-1]))

        try:
            for piece in pieces:
                while (block := self._take(device, wait=not copied)) is None:
                    post_oldest()
                host = block.hold(piece)
                rows = host[piece.source_row :][: len(piece.sources)]
                ready = copies.to_host(partial(_copy, rows, piece.sources), piece.sources)
                copied.append((block, host, piece, ready))
            while copied:
                post_oldest()
        except BaseException:
            # Posted transfers end by themselves and keep their blocks. Copies to other blocks may
            # still run. Therefore the ring drops all blocks, and later operations allocate new
            # blocks.
            self._blocks.clear()
            raise
        return AllOf(transfers)

    def _take(self, device: Device, *, wait: bool) -> _Block | None:
        """Return the ring's next memory block; None if it is in use and `wait` is false."""
        if len(self._blocks) < self._most and not (self._blocks and self._blocks[0].free.is_set()):
            block = _Block(device.allocate(self.piece_bytes))
        else:
            block = self._blocks[0]
            if not block.free.is_set() and not wait:
                return None
            block.free.wait()  # This wait ends, since every transfer has a timeout.
            self._blocks.popleft()
        if block.landing is not None and block.landing.event is not None:
            block.landing.event.synchronize()
        block.landing = None
        block.free.clear()
        self._blocks.append(block)
        return block


def pieces_of(source: torch.Tensor, target: torch.Tensor, piece_bytes: int) -> list[Piece]:
    """Cut two flat tensors of the same type and length into pieces of at most `piece_bytes`."""
    return [Piece([source[part]], [target[part]]) for part in _parts(source, piece_bytes)]


def gathered_pieces(
    source: torch.Tensor, targets: Sequence[torch.Tensor], rank: int, piece_bytes: int
) -> list[Piece]:
    """Cut an all_gather of flat tensors of the same type and length into pieces.

    `targets` has a tensor for each rank. A piece has at most `piece_bytes` in host memory.
    """
    ranks = len(targets)
    return [
        Piece([source[part]], [each[part] for each in targets], rows=ranks, source_row=rank)
        for part in _parts(source, piece_bytes // ranks)
    ]


def scattered_pieces(
    sources: Sequence[torch.Tensor], target: torch.Tensor, rank: int, piece_bytes: int
) -> list[Piece]:
    """Cut a reduce_scatter of flat tensors of the same type and length into pieces.

    `sources` has a tensor for each rank. A piece has at most `piece_bytes` in host memory.
    """
    ranks = len(sources)
    return [
        Piece([each[part] for each in sources], [target[part]], rows=ranks, target_row=rank)
        for part in _parts(target, piece_bytes // ranks)
    ]


def _parts(tensor: torch.Tensor, most_bytes: int) -> list[slice]:
    """Return the parts of a flat tensor of at most so many bytes each, but of one element."""
    count = max(1, most_bytes // tensor.element_size())
    return [slice(start, start + count) for start in range(0, tensor.numel(), count)]


def _land(
    device: Device,
    copies: Copies,
    block: _Block,
    piece: Piece,
    host: torch.Tensor,
    transfer: Transfer,
) -> Landing:
    """Return the Landing, not launched yet, that copies a piece's result to the device."""
    rows = host[piece.target_row :][: len(piece.targets)]
    copy = partial(_copy, piece.targets, rows)
    block.landing = Landing(device, copies, copy, piece.targets, [host], transfer=transfer)
    return block.landing


def _copy(targets: Iterable[torch.Tensor], sources: Iterable[torch.Tensor]) -> None:
    # Row by row, since a copy of rows with gaps between them needs further memory on the device.
    with torch.inference_mode():
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source, non_blocking=True)


def _end(device: Device, block: _Block, landing: Landing, error: BaseException | None) -> None:
    """Have a piece's result copied to the device; then free the memory block for another piece."""
    if landing.ended(error):
        device.run_later(partial(_launch, block, landing))
    else:
        block.free.set()


def _launch(block: _Block, landing: Landing) -> None:
    try:
        landing.launch()
    finally:
        block.free.set()
