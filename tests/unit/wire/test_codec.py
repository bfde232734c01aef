import contextlib
import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackline.errors import FrameError, UsageError
from slackline.wire import (
    FIELDS,
    HEADER_BYTES,
    Collective,
    DType,
    FrameFlag,
    FrameKind,
    Header,
    ReduceOp,
    crc32c,
    decode,
    encode,
)


def unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


HEADERS = st.builds(
    Header,
    kind=st.sampled_from(FrameKind),
    job=unsigned(32),
    epoch=unsigned(32),
    source=unsigned(16),
    dtype=st.none() | st.sampled_from(DType),
    collective=st.sampled_from(Collective),
    reduce_op=st.sampled_from(ReduceOp),
    tag=unsigned(64),
    sequence=unsigned(32),
    acknowledge=unsigned(32),
    offset=unsigned(64),
    total=unsigned(64),
    length=unsigned(32),
    chunk=unsigned(16),
    flags=unsigned(8).map(FrameFlag),
    plan_id=unsigned(8),
    payload_checksum=unsigned(32),
)


def sealed(head: bytes) -> bytes:
    """Return the frame with the correct checksum over its first 60 bytes."""
    return head[:60] + crc32c(head[:60]).to_bytes(4, "little")


@given(HEADERS)
def test_a_header_survives_the_wire(header: Header) -> None:
    data = encode(header)
    assert len(data) == HEADER_BYTES
    assert decode(data + b"payload") == header


def test_the_bytes_are_where_the_table_says() -> None:
    header = Header(
        kind=FrameKind.DATA,
        source=0x1234,
        dtype=DType.BFLOAT16,
        collective=Collective.ALL_REDUCE,
        reduce_op=ReduceOp.SUM,
        tag=0x0102030405060708,
        flags=FrameFlag.PARTIAL,
        plan_id=5,
    )
    data = encode(header)
    assert data[:4] == b"SL\x01\x01"
    assert data[12:16] == b"\x34\x12\x04\x11"
    assert data[16:24] == bytes([8, 7, 6, 5, 4, 3, 2, 1])
    assert data[54:56] == b"\x01\x05"


def test_the_table_has_no_holes_and_keeps_every_field_aligned() -> None:
    end = 0
    for field in FIELDS:
        assert field.offset == end
        assert field.offset % field.width == 0
        end += field.width
    assert end == HEADER_BYTES == 64


@pytest.mark.parametrize("bit", range(8 * HEADER_BYTES))
def test_any_flipped_bit_is_noticed(bit: int) -> None:
    data = bytearray(encode(Header(kind=FrameKind.DATA, tag=77, length=100)))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FrameError):
        decode(data)


WRONG = {
    "a frame header has 64 bytes, not 63": lambda data: data[:63],
    "a frame opens with 0x4C53, not 0x4C50": lambda data: b"PL" + data[2:],
    "the frame has version 9, this side speaks 1": lambda data: data[:2] + b"\x09" + data[3:],
    "the header's checksum is 0x1C0F7679, the frame says 0x00000000": lambda data: (
        data[:60] + bytes(4)
    ),
    "99 is not a FrameKind that this version knows": lambda data: sealed(
        data[:3] + b"\x63" + data[4:]
    ),
    "14 is not a DType that this version knows": lambda data: sealed(
        data[:14] + b"\x0e" + data[15:]
    ),
    "11 is not a Collective that this version knows": lambda data: sealed(
        data[:15] + b"\xb0" + data[16:]
    ),
    "9 is not a ReduceOp that this version knows": lambda data: sealed(
        data[:15] + b"\x09" + data[16:]
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_frame_is_refused_with_the_value_that_is_wrong(message: str) -> None:
    data = WRONG[message](encode(Header(kind=FrameKind.DATA)))
    with pytest.raises(FrameError, match=f"^{re.escape(message)}$"):
        decode(data)


@given(st.binary(max_size=128))
def test_any_bytes_are_a_header_or_a_frame_error(data: bytes) -> None:
    with contextlib.suppress(FrameError):
        assert encode(decode(data)) == data[:HEADER_BYTES]


@given(st.binary(min_size=HEADER_BYTES - 8, max_size=HEADER_BYTES - 8))
def test_any_fields_behind_a_right_checksum_are_a_header_or_a_frame_error(body: bytes) -> None:
    data = sealed(encode(Header(kind=FrameKind.DATA))[:4] + body + bytes(4))
    with contextlib.suppress(FrameError):
        assert encode(decode(data)) == data


def test_a_value_too_large_for_its_field_is_the_callers_mistake() -> None:
    with pytest.raises(UsageError, match=r"^source must fit in 16 bits, not be 65536$"):
        Header(kind=FrameKind.DATA, source=1 << 16)
    with pytest.raises(UsageError, match=r"^plan_id must fit in 8 bits, not be 256$"):
        Header(kind=FrameKind.DATA, plan_id=256)
    with pytest.raises(UsageError, match=r"^offset must fit in 64 bits, not be -1$"):
        Header(kind=FrameKind.DATA, offset=-1)


def test_a_header_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Header(kind=FrameKind.DATA).tag = 1  # type: ignore[misc]
