"""Blocks of bytes on a pipe: 8 bytes of length, little-endian, and then the data."""

from typing import IO

__all__ = ["read_block", "write_block"]


def read_block(stream: IO[bytes]) -> bytes | None:
    """Read a block from `stream`; None if the stream ends before the end of the block."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    length = int.from_bytes(head, "little")
    data = stream.read(length)
    return data if len(data) == length else None


def write_block(stream: IO[bytes], data: bytes) -> None:
    """Write a block to `stream` and flush it."""
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()
