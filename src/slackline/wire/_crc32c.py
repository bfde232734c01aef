"""The CRC32C checksum (Castagnoli, reflected polynomial 0x82F63B78) for headers and tests.

The implementation is table-driven.
"""

__all__ = ["crc32c"]

_POLYNOMIAL = 0x82F63B78


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = tuple(_entry(byte) for byte in range(256))


def crc32c(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """Compute the checksum of `data`, continued from the checksum `value` of the bytes before it.

    crc32c(a + b) == crc32c(b, crc32c(a)).
    """
    value ^= 0xFFFFFFFF
    for byte in memoryview(data).cast("B"):
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF
