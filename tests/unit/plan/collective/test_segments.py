"""Chunks are cut into segments that can flow and are not tiny."""

import pytest

from slackline.errors import UsageError
from slackline.plan.collective import cutting

KIB = 1 << 10
LIMIT = 128 * KIB


@pytest.mark.parametrize(
    ("nbytes", "segment"),
    [
        (0, 16 * KIB),
        (100 * KIB, 16 * KIB),
        (128 * KIB - 8, 16 * KIB),
        (128 * KIB, 32 * KIB),
        (500 * KIB, 64 * KIB),
        (10_000 * KIB, 128 * KIB),
    ],
)
def test_a_chunk_that_flows_has_about_eight_segments(nbytes: int, segment: int) -> None:
    assert cutting(0).elements(nbytes // 4, 4, LIMIT, forwards=True) == segment // 4


@pytest.mark.parametrize(
    ("nbytes", "segment"), [(0, 16 * KIB), (2048 * KIB, 32 * KIB), (1 << 30, 32 * KIB)]
)
def test_what_an_aggregator_adds_has_shorter_segments(nbytes: int, segment: int) -> None:
    assert cutting(1).elements(nbytes // 4, 4, LIMIT, forwards=True) == segment // 4


def test_a_chunk_that_goes_one_hop_has_the_longest_segments() -> None:
    assert cutting(0).elements(10, 4, LIMIT, forwards=False) == LIMIT // 4


def test_a_low_limit_overrides_the_smallest_segment() -> None:
    assert cutting(0).elements(10**6, 8, 4096, forwards=True) == 512


@pytest.mark.parametrize(
    ("itemsize", "limit", "said"),
    [
        (0, LIMIT, "itemsize must be a positive integer, not 0"),
        (4, 0, "limit_bytes must be a positive integer, not 0"),
    ],
)
def test_wrong_sizes_are_refused(itemsize: int, limit: int, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        cutting(0).elements(1, itemsize, limit, forwards=True)
    assert str(raised.value) == said
