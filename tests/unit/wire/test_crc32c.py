import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackline.wire import crc32c

# The vectors are those of RFC 3720, section B.4.
VECTORS = {
    bytes(32): 0x8A9136AA,
    bytes([0xFF] * 32): 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(range(31, -1, -1)): 0x113FDB5C,
}


@pytest.mark.parametrize("data", VECTORS)
def test_the_checksum_agrees_with_the_published_vectors(data: bytes) -> None:
    assert crc32c(data) == VECTORS[data]


@given(st.binary(), st.binary())
def test_a_checksum_can_be_continued(first: bytes, second: bytes) -> None:
    assert crc32c(second, crc32c(first)) == crc32c(first + second)


def test_the_checksum_of_nothing_is_zero() -> None:
    assert crc32c(b"") == 0
